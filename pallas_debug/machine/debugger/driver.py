"""Step-by-step driver of the machine, in an order that is the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.grid import BlockOutOfBounds, Window
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.observer import MachineObserver, max_iterations
from pallas_debug.machine.sightings import index_text, shape_text
from pallas_debug.machine.threads import Thread


class RunFault(Exception):
    """The run cannot continue; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A memory write of the most recent step.

    Attributes:
      how: "store", "copy" (a DMA has ended), "fetch" or "write-back" (by the pipeline), "count" (of
        a semaphore), "new" (the memory is allocated, or gets another block of an output).
      region: elements written; None for the whole buffer.
      window: the pipeline's window, for a fetch or write-back.
      block: block of the window that was fetched or written back.
      slot: slot of the window from which the block was written back.
      counts: counts of the semaphore's entries after the write.
      mask: elements of the region that a masked store wrote; None if it wrote all.
    """

    how: str
    buffer: MemoryBuffer
    region: MemoryRegion | None = None
    copy: DmaCopy | None = None
    window: Window | None = None
    block: tuple[int, ...] = ()
    slot: MemoryBuffer | None = None
    counts: tuple[int, ...] = ()
    mask: np.ndarray[Any, Any] | None = None


class StepEvents(MachineObserver):
    """Effects of the most recent step, and the buffers changed since a snapshot."""

    def __init__(self) -> None:
        self.writes: list[MemoryWrite] = []
        self.printed: list[str] = []
        self.dirty: set[MemoryBuffer] = set()
        self.begins_point = False

    def clear(self) -> None:
        self.writes.clear()
        self.printed.clear()
        self.begins_point = False

    def _wrote(self, write: MemoryWrite) -> None:
        self.writes.append(write)
        self.dirty.add(write.buffer)

    def _counted(self, semaphore: MemoryBuffer, counts: np.ndarray[Any, Any]) -> None:
        numbers = tuple(int(n) for n in counts.reshape(-1))
        self._wrote(MemoryWrite("count", semaphore, counts=numbers))

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._wrote(MemoryWrite("new", buffer))

    def point_begins(self, thread: Thread) -> None:
        self.begins_point = True

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if isinstance(step, ir.WhileLoop) and iteration >= max_iterations(step):
            line = step.site.line
            where = "" if line is None else f" at line {line.line}"
            raise RunFault(
                f"endless loop: the `while_loop`{where} has not ended after {iteration:,} "
                "iterations"
            )

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        mask = getattr(step, "mask", None)
        held = None if mask is None else np.asarray(thread.frames[-1].registers[mask.number])
        self._wrote(MemoryWrite("store", region.buffer, region, mask=held))

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        slot = window.slots[window.filled]
        self._wrote(MemoryWrite("fetch", slot, window=window, block=block))

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        slot = window.current
        self._wrote(MemoryWrite("write-back", window.array, window=window, block=block, slot=slot))

    def copy_ends(self, copy: DmaCopy) -> None:
        self._wrote(MemoryWrite("copy", copy.destination.buffer, copy.destination, copy))
        for counter in (copy.received, copy.sent):
            if counter is not None:
                counts = counter.buffer.content.copy()
                counts[counter.entry] += copy.amount(counter)  # reported before it is performed
                self._counted(counter.buffer, counts)

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self._counted(counter.buffer, counter.buffer.content)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self._counted(counter.buffer, counter.buffer.content)

    def prints(self, thread: Thread, step: ir.PrintStep, values: Sequence[Any]) -> None:
        self.printed.append(step.text(values))


class Driver:
    """Runs a machine step by step: each core until it has to wait, in order of core number.

    Attributes:
      tick: number of steps so far.
      turn: number of the thread whose turn it is.
      progress: whether any thread has executed a step since the first thread's last turn.
      ended: whether all threads have ended.
      is_broken: whether the most recent step could not be executed.
    """

    def __init__(self, machine: Machine, events: StepEvents) -> None:
        self.machine = machine
        self.events = events
        self.tick = 0
        self.turn = 0
        self.progress = False
        self.ended = False
        self.is_broken = False

    @property
    def thread(self) -> Thread:
        return self.machine.threads[self.turn]

    def advance(self) -> None:
        """Execute one step.

        Raises:
          RunFault: the step cannot be executed; the machine's state is undefined.
        """
        self.events.clear()
        self.is_broken = True
        try:
            self._advance()
        except RunFault:
            raise
        except Stopped as stopped:
            cause = stopped.__cause__
            raise RunFault(_of_fault(cause) if cause is not None else str(stopped)) from stopped
        except Exception as error:
            raise RunFault(_of_fault(error)) from error
        self.is_broken = False
        self.tick += 1

    def _advance(self) -> None:
        machine = self.machine
        while True:
            if machine.is_done:
                if machine.copies:
                    machine.complete(machine.copies[0])
                else:
                    self.ended = True
                return
            if not self.thread.is_done and machine.step(self.thread):
                self.progress = True
                return
            self.turn += 1
            if self.turn < len(machine.threads):
                continue
            self.turn = 0
            if self.progress:
                self.progress = False
            elif machine.copies:
                machine.complete(machine.copies[0])
                return
            else:
                raise RunFault(_deadlock(machine.threads))


def _of_fault(error: BaseException) -> str:
    if isinstance(error, OutOfBounds):
        selected = index_text(error.buffer.name + error.recast, error.index)
        return f"{selected} is out of bounds for {shape_text(error.buffer, error.shape)}"
    if isinstance(error, BlockOutOfBounds):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _deadlock(threads: Sequence[Thread]) -> str:
    waiting = []
    for thread in threads:
        blocked = thread.blocked
        if blocked is not None:
            who = f"device {thread.device} waits" if len(threads) > 1 else "the kernel waits"
            waiting.append(
                f"{who} until `{blocked.counter}` is {blocked.amount}, but it is "
                f"{blocked.counter.count}"
            )
    return "deadlock: nothing can run. " + "; ".join(waiting)
