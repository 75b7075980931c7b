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
    points: set[Point] = field(default_factory=set)
    devices: set[int] = field(default_factory=set)


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
      near: order established on one core.
      far: order established for grid points on several cores, by coordinates on parallel axes.
      copies: DMAs on it that have not been awaited, oldest first.
      starts, waits: number of DMAs started on it, and number of waits for a DMA.
      mismatch: first wait for another size since the count was last zero.
      signallers: devices that have signalled it.
      cores: threads that have signalled it, by number.
      awaited_in: the last wait that took the bytes of a DMA.
      filled: names of destinations of its DMAs.
      awaited: identities of steps that started DMAs from which a wait took bytes.
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
    signallers: set[int] = field(default_factory=set)
    cores: set[int] = field(default_factory=set)
    awaited_in: EventPlace | None = None
    filled: dict[str, None] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    last_signal: EventPlace | None = None

    @property
    def unawaited(self) -> int | None:
        """Identity of the step that started the oldest DMA left, if no wait was for its DMAs."""
        step = id(self.copies[0].place.step) if self.copies else None
        return None if step in self.awaited else step

    @property
    def name(self) -> str:
        """Name of the semaphore: `sems[0]`."""
        return counter_text(Counter(self.buffer, self.entry))

    def release(
        self, near: Task, far: Task, lane: Point | None, amount: int, label: object = None
    ) -> None:
        self.near.release(near, amount, label)
        if self.far is not None:
            self.far.setdefault(lane, SemaphoreClock()).release(far, amount, label)

    def take(self, near: Task, far: Task, lane: Point, amount: int) -> DmaCopy | EventPlace | None:
        """Order the releases that a wait required before the two tasks of the waiting thread.

        A wait for an amount of zero follows all releases.

        Returns:
          A DMA or signal of another lane that the wait needs to return.
        """
        _take(self.near, near, amount)
        if self.far is None:
            return None
        own, crossing = self.far.setdefault(lane, SemaphoreClock()), None
        if own.count < amount or not amount:
            if own.count + (self.far[None].count if None in self.far else 0) < amount:
                crossing = self._of_another(lane)
            # From another device, or from an earlier grid point on the same core.
            for clock in self.far.values():
                if clock is not own:
                    own.count += clock.count
                    own.pending += clock.pending
                    clock.count, clock.pending = 0, []
        _take(own, far, amount)
        return crossing

    def _of_another(self, lane: Point) -> DmaCopy | EventPlace | None:
        """Return the first release by another lane of this core, if there is one."""
        for key, clock in (self.far or {}).items():
            if key is not None and key != lane and clock.count:
                for release in clock.pending:
                    if isinstance(release.label, (DmaCopy, EventPlace)):
                        return release.label
        return None

    def signalled(self, place: EventPlace, amount: int) -> None:
        self.last_signal = place
        self.signallers.add(place.device)
        _count(self.signals, place, amount)

    def started(self, copy: StartedCopy) -> None:
        self.starts += 1
        self.copies.append(copy)
        self.filled[copy.operand] = None
        self.signallers.add(copy.place.device)

    def waited(
        self, place: EventPlace, amount: int, target: MemoryBuffer | None,
        descriptor: Callable[[], str | None],
    ) -> None:  # fmt: skip
        """Take an amount from the DMAs: from those of that size first, then from the oldest.

        Args:
          target: destination that the wait names; preferred among DMAs of that size.
          descriptor: slice of the destination; preferred among DMAs to the destination.
        """
        _count(self.taken, place, amount)
        if not self.starts:
            return
        self.waits += 1
        self.awaited_in = place
        alike = [copy for copy in self.copies if copy.left == amount]
        if alike:
            slices = descriptor()
            copy = max(
                alike, key=lambda copy: (copy.names[1] == slices, copy.destination is target)
            )
            self.copies.remove(copy)
            self.awaited.add(id(copy.place.step))
        else:
            if self.copies and self.mismatch is None:
                self.mismatch = SizeMismatch(place, amount, self.copies[0], descriptor())
            while amount and self.copies:
                copy = self.copies[0]
                self.awaited.add(id(copy.place.step))
                taken = min(amount, copy.left)
                copy.left -= taken
                amount -= taken
                if not copy.left:
                    self.copies.popleft()
        if not self.copies:
            self.mismatch = None

    @property
    def totals(self) -> tuple[int, int]:
        """Sums of all signals and all waits."""
        signals = sum(line.amount for line in self.signals.values())
        return signals, sum(line.amount for line in self.taken.values())


def _take(clock: SemaphoreClock, task: Task, amount: int) -> None:
    if amount > clock.count or not amount:  # raised from outside, or not lowered
        for release in clock.pending:
            task.join(release.stamp)
        clock.count -= min(amount, clock.count)
        return
    clock.take(task, amount)


def _count(lines: dict[SourceLine | None, LineSum], place: EventPlace, amount: int) -> None:
    line = lines.get(place.step.site.line)
    if line is None:
        line = lines[place.step.site.line] = LineSum(place)
    line.amount += amount
    line.points.add(place.point)
    line.devices.add(place.device)
