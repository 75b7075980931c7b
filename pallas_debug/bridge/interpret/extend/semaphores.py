"""Operations on semaphores that jax's TPU interpret mode lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter


@interpreter.fail_on_exception  # type: ignore[untyped-decorator]
def semaphore_read(
    token: Any, device_id: Any, local_core_id: Any, sem_id: Any, *, source_info: Any = None
) -> Any:
    """Read a semaphore's count.

    Then run one of the copies that would signal it. jax runs copies when they are awaited, so a
    loop that polls the semaphore would never end.
    """
    del source_info
    memory = interpreter._get_shared_memory()
    core = memory.get_global_core_id(int(device_id), int(local_core_id))
    (semaphore,), _ = memory.get_semaphores_and_increment_clock([int(sem_id)], core)
    with semaphore.cv:
        count = int(semaphore.count_by_core[core])
        tasks = semaphore.tasks[core]
        task = tasks.pop() if tasks else None
    if task is not None:
        task()
    return token, np.int32(count)


@interpreter.fail_on_exception  # type: ignore[untyped-decorator]
def semaphore_wait(
    token: Any,
    device_id: Any,
    local_core_id: Any,
    sem_id: Any,
    value: Any,
    *,
    source_info: Any = None,
    decrement: bool = False,
) -> Any:
    """Wait for a semaphore without decrementing it.

    Only its own core waits on a semaphore, so nothing can happen between the two steps.
    """
    del source_info, decrement
    memory = interpreter._get_shared_memory()
    core = memory.get_global_core_id(int(device_id), int(local_core_id))
    (semaphore,), clock = memory.get_semaphores_and_increment_clock([int(sem_id)], core)
    semaphore.wait(int(value), core, has_tasks=True)
    semaphore.signal(int(value), core, clock)
    return token


class CopyCounter:
    """A regular semaphore for a DMA: the DMA adds 1 to it, whereas jax would add its bytes."""

    def __init__(self, semaphore: Any) -> None:
        self._semaphore = semaphore

    def __getattr__(self, name: str) -> Any:
        return getattr(self._semaphore, name)

    def signal(self, amount: int, *args: Any, **keywords: Any) -> None:
        self._semaphore.signal(1, *args, **keywords)
