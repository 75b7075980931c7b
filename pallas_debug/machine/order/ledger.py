"""Ledger of each semaphore: DMAs, signals and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.machine.clocks import SemaphoreClock, Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.order.facts import EventPlace, StartedCopy
from pallas_debug.machine.sightings import counter_text
from pallas_debug.model import SourceLine

Point = tuple[int, ...]


@dataclass(slots=True)
class LineSum:
    """Amount that a line adds to a semaphore or takes from it."""

    first: EventPlace
    amount: int = 0


@dataclass(frozen=True, slots=True)
class SizeMismatch:
    """A wait for another number of bytes than the next DMA transfers."""

    wait: EventPlace
    awaited: int
    copy: StartedCopy
    descriptor: str | None


@dataclass(eq=False, slots=True)
class SemaphoreLedger:
    """One entry of a semaphore array.

    Attributes:
      near: vector clocks for the order on one core.
      far: vector clocks for the order of grid points on several cores, by their coordinates on
        parallel axes; by None for what comes from other devices.
      copies: DMAs on it that have not been awaited, oldest first.
      starts, waits: number of DMAs started on it, and number of waits for a DMA.
      signals, taken: what each line has added to it by signals, and taken by waits.
      mismatch: first wait for another size since the count was last zero.
      last: the last signal, or wait for a DMA.
    """

    buffer: MemoryBuffer
    entry: tuple[Any, ...]
    near: SemaphoreClock = field(default_factory=SemaphoreClock)
    far: dict[Point | None, SemaphoreClock] | None = None
    copies: deque[StartedCopy] = field(default_factory=deque)
    starts: int = 0
    waits: int = 0
    signals: dict[SourceLine | None, LineSum] = field(default_factory=dict)
    taken: dict[SourceLine | None, LineSum] = field(default_factory=dict)
    mismatch: SizeMismatch | None = None
    last: EventPlace | None = None

    @property
    def name(self) -> str:
        """Name of the semaphore: `sems[0]`."""
        return counter_text(Counter(self.buffer, self.entry))

    @property
    def is_raised(self) -> bool:
        """True if it is not zero, or will not be when its DMAs are over."""
        return bool(self.near.count or self.copies)

    @property
    def totals(self) -> tuple[int, int]:
        """Sums of all signals and all waits."""
        signals = sum(line.amount for line in self.signals.values())
        return signals, sum(line.amount for line in self.taken.values())

    def release(
        self, near: Task, far: Task, point: Point | None, amount: int, label: object = None
    ) -> None:
        """Order what two tasks have done before the waits that need this release.

        Args:
          point: coordinates on parallel axes; None if it comes from another device.
        """
        self.near.release(near, amount, label)
        if self.far is not None:
            self.far.setdefault(point, SemaphoreClock()).release(far, amount, label)

    def take(self, near: Task, far: Task, point: Point, amount: int) -> DmaCopy | EventPlace | None:
        """Order the releases that a wait required before the two tasks of the waiting thread.

        A wait for an amount of zero follows all releases.

        Returns:
          A DMA or signal of another parallel grid point that the wait needs to return.
        """
        _take(self.near, near, amount)
        if self.far is None:
            return None
        own, crossing = self.far.setdefault(point, SemaphoreClock()), None
        if own.count < amount or not amount:
            if own.count + (self.far[None].count if None in self.far else 0) < amount:
                crossing = self._of_another(point)
            # From another device, or from an earlier grid point on the same core.
            for clock in self.far.values():
                if clock is not own:
                    own.count += clock.count
                    own.pending += clock.pending
                    clock.count, clock.pending = 0, []
        _take(own, far, amount)
        return crossing

    def _of_another(self, point: Point) -> DmaCopy | EventPlace | None:
        """Return the first release by another parallel grid point of this core, if any."""
        for key, clock in (self.far or {}).items():
            if key is not None and key != point and clock.count:
                for release in clock.pending:
                    if isinstance(release.label, (DmaCopy, EventPlace)):
                        return release.label
        return None

    def signalled(self, place: EventPlace, amount: int) -> None:
        self.last = place
        _count(self.signals, place, amount)

    def started(self, copy: StartedCopy) -> None:
        self.starts += 1
        self.copies.append(copy)

    def waited(self, place: EventPlace, amount: int, descriptor: Callable[[], str | None]) -> None:
        """Take an amount from the DMAs: from those of that size first, then from the oldest.

        Args:
          descriptor: destination that the wait names; preferred among DMAs of that size.
        """
        _count(self.taken, place, amount)
        if not self.starts:
            return
        self.waits += 1
        self.last = place
        fitting = [copy for copy in self.copies if copy.left == amount]
        if fitting:
            slices = descriptor()
            self.copies.remove(max(fitting, key=lambda copy: copy.names[1] == slices))
        elif self.copies and self.mismatch is None:
            self.mismatch = SizeMismatch(place, amount, self.copies[0], descriptor())
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


def _count(lines: dict[SourceLine | None, LineSum], place: EventPlace, amount: int) -> None:
    lines.setdefault(place.step.site.line, LineSum(place)).amount += amount
