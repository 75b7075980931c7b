"""Where something happened in a run, and its names and indices as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.order import Access, Stuck
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import Entry, MemoryBuffer
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Witness

BARRIER = "the barrier semaphore"


def sighting(
    launch: Launch, thread: Thread | None, step: ir.MachineStep | None = None, **facts: Any
) -> Sighting:
    """Position of a thread: line of the step, grid point, iterations, device and core.

    Args:
      facts: fields of the witness, such as `operand`, `index` and `shape`; they take precedence.
    """
    values = dict(facts.pop("values", {}))
    given: dict[str, Any] = {"source": None if step is None else step.site.line}
    if thread is not None:
        given |= {"grid_point": thread.point or None, "loop": thread.iterations}
        if thread.device or launch.mesh:
            values = {"device": str(thread.device), **values}
        if thread.core:
            values = {"core": str(thread.core), **values}
    witness = Witness(**{**given, **facts}, values=values)
    return Sighting(kernel=launch.name, engine="machine", witness=witness)


class RecordedEvent(Protocol):
    """An access or event of a run."""

    @property
    def step(self) -> ir.MachineStep: ...

    @property
    def point(self) -> tuple[int, ...]: ...

    @property
    def iterations(self) -> tuple[int, ...]: ...


def sighting_of(
    launch: Launch, event: RecordedEvent | None, buffer: MemoryBuffer | None = None, *,
    count: int = 1, **facts: Any,
) -> Sighting:  # fmt: skip
    """Position of a recorded event: line of the step, grid point and iterations.

    Args:
      buffer: memory whose name, shape and device belong to the witness.
      facts: fields of the witness; they take precedence.
    """
    given: dict[str, Any] = {}
    if event is not None:
        given |= {"source": event.step.site.line, "grid_point": event.point}
        given["loop"] = event.iterations
    if buffer is not None:
        given |= {"operand": buffer.name, "shape": shape_text(buffer)}
        if buffer.device or launch.mesh:
            given["values"] = {"device": str(buffer.device)}
    witness = Witness(**given | facts)
    return Sighting(kernel=launch.name, engine="machine", witness=witness, count=count)


def access_of(event: RecordedEvent, copy: DmaCopy | None = None, *, writes: bool = True) -> Access:
    """Side of a fault at a recorded event; `copy` is the DMA that accesses the memory, if any."""
    names = None if copy is None else (copy.source.buffer.name, copy.destination.buffer.name)
    return Access(writes=writes, grid_point=event.point, loop=event.iterations, copy=names)


def shape_text(buffer: MemoryBuffer, shape: Sequence[int] | None = None) -> str:
    """Describe memory: `float32[16, 128] in VMEM`, or semaphores: `dma_semaphore[2]`."""
    sizes = list(buffer.content.shape if shape is None else shape)
    if buffer.type.semaphore is not None:
        return f"{buffer.type.semaphore}_semaphore{sizes}"
    return f"{buffer.type.dtype}{sizes} in {buffer.type.space.upper()}"


def index_text(name: str, entries: Sequence[Entry]) -> str:
    """Describe a part of memory: `x_ref[12:20, 0:128]`."""
    return f"{name}[{', '.join(map(_entry, entries)) or '...'}]"


def _entry(entry: Entry) -> str:
    if isinstance(entry, slice):
        stride = entry.step or 1
        return f"{entry.start}:{entry.stop}" + (f":{stride}" if stride != 1 else "")
    if isinstance(entry, np.ndarray) and entry.ndim:
        return f"{entry.dtype}{list(entry.shape)}"
    return str(entry)


def counter_text(counter: Counter) -> str:
    """Describe a semaphore: `sem[1]`."""
    buffer, entry = counter.buffer, counter.entry
    if buffer.type.semaphore == "barrier":
        return BARRIER
    if not entry or buffer.content.size == 1:
        return buffer.name
    return f"{buffer.name}[{', '.join(str(int(i)) for i in entry)}]"


def stuck_wait(thread: Thread, blocked: Blocked) -> Stuck:
    return Stuck(
        semaphore=counter_text(blocked.counter),
        line=blocked.step.site.line,
        device=thread.device,
        core=thread.core,
    )
