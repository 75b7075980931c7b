"""Waits that never end in jax's TPU interpret mode: for semaphores, and for other devices."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

from pallas_debug import interrupts
from pallas_debug.bridge.interpret import tpu_findings as words
from pallas_debug.bridge.interpret.tpu_findings import Place
from pallas_debug.bridge.interpret.tpu_run import (
    KernelRun,
    Waiter,
    current_place,
    current_run,
    here,
    report,
    reporters,
    stop,
)
from pallas_debug.findings.wording import unsupported

SURE_AFTER = 0.5
"""Delay in seconds before checking for a deadlock across all cores."""

IDLE = 0.05
"""Share of a CPU below which a process computes nothing."""


@contextlib.contextmanager
def waiting(semaphore: Any, value: int, core: int) -> Iterator[None]:
    """Register this thread as being in `Semaphore.wait`, where it polls `check_hang`."""
    run, place = current_run(), current_place()
    if run is None or place is None:
        yield
        return
    waiter = Waiter(place, semaphore, int(core), int(value))
    before, here.waiter = here.waiter, waiter
    with run.lock:
        run.waiters.append(waiter)
    run.progress()
    try:
        yield
    finally:
        here.waiter = before
        with run.lock:
            run.waiters.remove(waiter)
        run.progress()


def check_hang() -> None:
    """End a wait that would never end.

    Raises:
      KernelFault: no thread of the interpreter made progress for as long as the reporters allow,
        or every core waits for something that none of them can provide.
    """
    waiter, run = here.waiter, current_run()
    if run is not None:
        interrupts.end_if_since(run.interrupts)
    limit = patience()
    if waiter is None or run is None or limit is None:
        return
    idle = time.monotonic() - run.last_progress
    if idle < min(limit, SURE_AFTER):
        return
    with run.lock:
        waiters = [w for w in run.waiters if w.is_stuck]
    if waiter in waiters and (idle >= limit or len(waiters) >= run.memory.num_cores):
        _deadlock(run, waiter, waiters)


def patience() -> float | None:
    """Seconds without progress after which a wait is a hang; None for no limit."""
    return min((r.hang_after for r in reporters if r.hang_after is not None), default=None)


def _deadlock(run: KernelRun, waiter: Waiter, waiters: list[Waiter]) -> NoReturn:
    findings = {id(w): words.deadlock(_describe(run, w), len(waiters) - 1) for w in waiters}
    for other in waiters:
        report(findings[id(other)])
    raise stop(findings[id(waiter)])


def _describe(run: KernelRun, waiter: Waiter) -> words.Wait:
    at = int(waiter.semaphore.id), waiter.core
    return words.Wait(
        place=replace(waiter.place, copy=None),
        semaphore=run.semaphore(*at),
        count=int(waiter.semaphore.count_by_core[waiter.core]),
        value=waiter.value,
        signal=run.signals.get(at),
        copies=run.num_copies.get(at, 0),
        of_copy=waiter.place.copy is not None,
    )


def start_together(run: KernelRun, place: Place, wait: Callable[[], Any]) -> Any:
    """Wait for the other devices at the beginning of a kernel.

    jax would wait forever for a device whose program failed before the kernel.

    Args:
      wait: jax's function, which waits in a barrier.

    Raises:
      KernelFault: not all devices arrived, and the process computed nothing for as long as the
        reporters allow.
    """
    limit = patience()
    if limit is None or int(run.memory.num_devices) == 1:
        return wait()
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(run, place, limit, is_over), daemon=True)
    watch.start()
    try:
        return wait()
    except threading.BrokenBarrierError:
        # Of the devices that are waiting, the first one whose watch gave up has reported it.
        if run.not_started is not None:
            raise run.not_started from None
        raise
    finally:
        is_over.set()


def _watch(run: KernelRun, place: Place, limit: float, is_over: threading.Event) -> None:
    """Break the barrier if the process stays idle for `limit` seconds."""
    before = time.process_time()
    while not is_over.wait(limit):
        now = time.process_time()
        if now - before < IDLE * limit:
            break
        before = now
    else:
        return
    memory = run.memory
    with run.lock:
        if is_over.is_set() or run.not_started is not None:
            return
        count = int(memory.num_devices)
        missing = [device for device in range(count) if device not in run.devices]
        found = unsupported.not_started(place.sighting(), missing, count=count, seconds=limit)
        run.not_started = stop(found)
    memory.barrier.abort()
    interpreter.reset_tpu_interpret_mode_state()  # else done once all devices have ended
