"""A kernel that runs from store to store, for a comparison with another kernel."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.comparison.writes import OutOfTime
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Entry, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.ordering.regions import in_buffer
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LockstepEvent:
    """A store or copy to an operand, or a block that an operand gets.

    Attributes:
      kind: "store", "copy" or "block".
      number: number of the event in its run.
      position: position of the grid point in the order of the grid.
      place: elements that are stored to, as text.
      array: shape of the buffer, or of the whole array for a block.
    """

    kind: str
    operand: str
    number: int
    position: int
    point: Point
    array: tuple[int, ...]
    shape: tuple[int, ...]
    iterations: Point = ()
    line: SourceLine | None = None
    region: MemoryRegion | None = None
    place: str = ""
    value: np.ndarray | None = None
    block: Point = ()

    @property
    def nbytes(self) -> int:
        return 0 if self.value is None else self.value.nbytes


@dataclass(eq=False)
class SteppedRun(MachineObserver):
    """Runs a machine up to its next event.

    Attributes:
      machine: set before the first step.
      pending: number of its events that wait for the other run.
      is_done: whether the kernel has ended, and all its events have been returned.
    """

    deadline: float
    machine: Machine = field(init=False)
    pending: int = 0
    is_done: bool = False
    _events: deque[LockstepEvent] = field(default_factory=deque)
    _number: int = 0

    @property
    def position(self) -> int:
        """Number of the grid point, in the order of the grid."""
        if self._events:
            return self._events[0].position
        return int(self.machine.threads[0].walk.position)

    def advance(self) -> LockstepEvent | None:
        """The next event; None after the last.

        Raises:
          OutOfTime: the run has taken too long.
          Stopped: the machine stops at a fault.
        """
        machine = self.machine
        (thread,) = machine.threads
        while not self._events:
            if thread.is_done:
                if not machine.copies:
                    self.is_done = True
                    return None
                machine.complete(machine.copies[0])
            elif not machine.step(thread):
                if not machine.copies:
                    raise Stopped("deadlock", thread)
                machine.complete(machine.copies[0])
        return self._events.popleft()

    def results(self) -> Any:
        return self.machine.results()[0]

    # Events

    def point_begins(self, thread: Thread) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if not iteration % 64 and time.monotonic() > self.deadline:
            raise OutOfTime

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        array = np.array(np.broadcast_to(np.asarray(value), region.shape or np.shape(value)))
        self._stored("store", thread.point, thread.iterations, step, region, array)

    def copy_ends(self, copy: DmaCopy) -> None:
        value = copy.source.read()
        self._stored("copy", copy.point, copy.iterations, copy.step, copy.destination, value)

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        self._block(thread, window, block)

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        self._block(thread, window, block)

    def _stored(
        self,
        kind: str,
        point: Point,
        iterations: Point,
        step: ir.MachineStep,
        region: MemoryRegion,
        value: np.ndarray,
    ) -> None:
        self._append(
            kind=kind,
            operand=region.buffer.name,
            point=point,
            array=region.buffer.content.shape,
            shape=value.shape,
            iterations=iterations,
            line=step.site.line,
            region=region,
            place=place_text(region),
            value=value,
        )

    def _block(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        self._append(
            kind="block",
            operand=window.operand.name,
            point=thread.point,
            array=window.array.content.shape,
            shape=window.spec.sizes,
            block=block,
        )

    def _append(self, **facts: Any) -> None:
        self._number += 1
        position = int(self.machine.threads[0].walk.position)
        self._events.append(LockstepEvent(number=self._number, position=position, **facts))


def operands_aligned(ours: Launch, theirs: Launch) -> dict[str, str]:
    """Names of our operands and buffers by the corresponding names in the other kernel.

    Equal names correspond; operands with different names correspond by their order.
    """
    a, b = ([operand.name for operand in launch.operands] for launch in (ours, theirs))
    kinds = [[operand.kind for operand in launch.operands] for launch in (ours, theirs)]
    if set(a) != set(b) and kinds[0] == kinds[1]:
        found = dict(zip(b, a, strict=True))
    else:
        found = {name: name for name in b if name in a}
    for name in _scoped(theirs) & _scoped(ours):
        found.setdefault(name, name)
    return found


def _scoped(launch: Launch) -> set[str]:
    found: set[str] = set()
    for step in launch.body.all_steps():
        if isinstance(step, ir.Scoped):
            found |= set(step.names)
        elif isinstance(step, ir.NewRef):
            found.add(step.name)
    return found


def place_text(region: MemoryRegion) -> str:
    """The elements of a region: `acc_ref[0:8, 0:128]`."""
    if region.index is None:
        return region.buffer.name
    return f"{region.buffer.name}[{', '.join(map(_entry, region.index))}]"


def _entry(entry: Entry) -> str:
    if isinstance(entry, slice):
        stride = f":{entry.step}" if (entry.step or 1) != 1 else ""
        return f"{entry.start}:{entry.stop}{stride}"
    if isinstance(entry, np.ndarray):
        return str(entry.reshape(-1)[:8].tolist())
    return str(int(entry))


def element_text(region: MemoryRegion | None, at: Point) -> str:
    """An element of a region by its place in the buffer: `acc_ref[3, 0]`."""
    assert region is not None
    name, found = region.buffer.name, in_buffer(region, at)
    if found is None:
        return f"element {[*at]} of a slice of {name}"
    return f"{name}{[*found]}" if found else name
