"""Ledger of each semaphore: DMAs, signals and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.clocks import SemaphoreClock, Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.sightings import counter_text
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A step that was executed, with its position."""

    step: ir.MachineStep
    point: Point
    iterations: Point

    @classmethod
    def of(cls, step: ir.MachineStep, thread: Thread) -> EventPlace:
        """Return a step at the current position of a thread."""
        return cls(step, thread.point, thread.iterations)


@dataclass(eq=False, slots=True)
class StartedCopy:
    """A DMA that has not been awaited.

    Attributes:
      names: names of its source and destination, with the slices.
      operand: name of its destination in the kernel, without a slice.
      nbytes: amount that it adds to the semaphore: 1 for one that does not count bytes.
      left: part of that amount that no wait has taken.
    """

    dma: DmaCopy
    names: tuple[str, str]
    operand: str
    nbytes: int
    left: int


@dataclass(frozen=True, slots=True)
class SizeMismatch:
    """A wait for another number of bytes than the next DMA transfers."""

    wait: EventPlace
    awaited: int
    copy: StartedCopy


@dataclass(eq=False, slots=True)
class SemaphoreLedger:
    """One entry of a semaphore array.

    Attributes:
      near: vector clocks for the order on one core.
      far: vector clocks for the order of grid points on several cores, by their coordinates on
        parallel axes; by None for what comes from other devices.
      copies: DMAs on it that have not been awaited, oldest first.
      starts, waits: number of DMAs started on it, and number of waits for a DMA.
      added, taken: sums of all signals and all waits.
      mismatch: first wait for another size since the count was last zero.
      last_signal, last_wait: places of the last signal, and of the last wait that took anything.
    """

    buffer: MemoryBuffer
    entry: tuple[Any, ...]
    near: SemaphoreClock = field(default_factory=SemaphoreClock)
    far: dict[Point | None, SemaphoreClock] | None = None
    copies: deque[StartedCopy] = field(default_factory=deque)
    starts: int = 0
    waits: int = 0
    added: int = 0
    taken: int = 0
    mismatch: SizeMismatch | None = None
    last_signal: EventPlace | None = None
    last_wait: EventPlace | None = None

    @property
    def name(self) -> str:
        """Name of the semaphore: `sems[0]`."""
        return counter_text(Counter(self.buffer, self.entry))

    @property
    def is_raised(self) -> bool:
        """True if it is not zero, or will not be when its DMAs are over."""
        return bool(self.near.count or self.copies)

    def release(self, near: Task, far: Task, point: Point | None, amount: int) -> None:
        """Order what two tasks have done before the waits that need this release.

        Args:
          point: coordinates on parallel axes; None if it comes from another device.
        """
        self.near.release(near, amount)
        if self.far is not None:
            self.far.setdefault(point, SemaphoreClock()).release(far, amount)

    def take(self, near: Task, far: Task, point: Point, amount: int) -> None:
        """Order the releases that a wait required before the two tasks of the waiting thread.

        A wait for an amount of zero follows all releases.
        """
        _take(self.near, near, amount)
        if self.far is None:
            return
        own = self.far.setdefault(point, SemaphoreClock())
        if own.count < amount or not amount:
            # From another device, or from an earlier grid point on the same core.
            for clock in self.far.values():
                if clock is not own:
                    own.count += clock.count
                    own.pending += clock.pending
                    clock.count, clock.pending = 0, []
        _take(own, far, amount)

    def signalled(self, place: EventPlace, amount: int) -> None:
        self.last_signal = place
        self.added += amount

    def started(self, copy: StartedCopy) -> None:
        self.starts += 1
        self.copies.append(copy)

    def waited(self, place: EventPlace, amount: int, slices: Callable[[], str | None]) -> None:
        """Take an amount from the DMAs: from those of that size first, then from the oldest.

        Args:
          slices: destination that the wait names; preferred among DMAs of that size.
        """
        self.last_wait = place
        self.taken += amount
        if not self.starts:
            return
        self.waits += 1
        fitting = [copy for copy in self.copies if copy.left == amount]
        if fitting:
            named = slices()
            self.copies.remove(max(fitting, key=lambda copy: copy.names[1] == named))
        elif self.copies and self.mismatch is None:
            self.mismatch = SizeMismatch(place, amount, self.copies[0])
        while not fitting and amount and self.copies:
            taken = min(amount, self.copies[0].left)
            self.copies[0].left -= taken
            amount -= taken
            if not self.copies[0].left:
                self.copies.popleft()
        if not self.copies:
            self.mismatch = None


def _take(clock: SemaphoreClock, task: Task, amount: int) -> None:
    if amount > clock.count or not amount:  # raised from outside, or not lowered
        for release in clock.pending:
            task.join(release.stamp)
        clock.count -= min(amount, clock.count)
        return
    clock.take(task, amount)
