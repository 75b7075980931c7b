"""Facts about the order of a run, as found by its observer."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.order.history import MemoryAccess
from pallas_debug.machine.order.regions import Box
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A step that was executed, with its position."""

    step: ir.MachineStep
    device: int
    point: Point
    iterations: Point

    @classmethod
    def of(cls, step: ir.MachineStep, thread: Thread) -> EventPlace:
        """Return a step at the current position of a thread."""
        return cls(step, thread.device, thread.point, thread.iterations)


@dataclass(eq=False, slots=True)
class RaceFact:
    """Two unordered accesses.

    Attributes:
      earlier, later: the accesses, in the order of this run.
      overlap: elements that both access.
      axes: parallel axes along which their grid points differ.
      waited: semaphores waited for since the DMA of `earlier` was started, if it is a DMA.
      was_awaited: whether the DMA's semaphore is among them.
      alike: number of DMAs in flight on its semaphore, if a wait took the bytes of fewer.
      when: number of the event.
      heard: threads whose signals the side that should have waited has waited for, if the two sides
        are on different cores.
    """

    earlier: MemoryAccess
    later: MemoryAccess
    overlap: Box
    axes: tuple[int, ...]
    waited: tuple[str, ...] | None
    alike: int
    when: int
    was_awaited: bool = False
    count: int = 1
    heard: frozenset[int] = frozenset()

    @property
    def overtakes(self) -> bool:
        """True if a DMA replaces data of an earlier DMA for whose arrival a read has waited."""
        fills = self.later.copy is not None and self.later.writes and self.later.was_filled
        return fills and self.was_awaited and not self.earlier.writes

    @property
    def second(self) -> MemoryAccess:
        """The side that should have waited for the other: the one that reads."""
        return self.later if self.later.writes == self.earlier.writes else (
            self.earlier if self.later.writes else self.later
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class StartedCopy:
    """A DMA that has not been awaited.

    Attributes:
      names: names of its source and destination, with the slices.
      destination, operand: buffer that it writes, and the buffer's name in the kernel.
      nbytes: amount that it adds to the semaphore: 1 for one that does not count bytes.
      left: part of that amount that no wait has taken.
    """

    place: EventPlace
    names: tuple[str, str]
    destination: MemoryBuffer
    operand: str
    nbytes: int
    left: int


@dataclass(eq=False, slots=True)
class EarlyCopy:
    """A DMA to a device that may not have entered the kernel yet.

    Attributes:
      heard: devices whose signals the sender has waited for.
    """

    copy: StartedCopy
    heard: tuple[int, ...]
    when: int
    count: int = 1


@dataclass(eq=False, slots=True)
class OverlappingCopy:
    """A DMA that writes elements of its own source.

    Attributes:
      overlap: elements that it both reads and writes.
    """

    copy: StartedCopy
    overlap: Box
    when: int
    count: int = 1


@dataclass(eq=False, slots=True)
class LaneWait:
    """A wait for a DMA or signal of another grid point of a parallel axis alone.

    Attributes:
      wait, source: places of the wait, and of the start of the DMA or the signal.
      semaphore: name of the semaphore.
      axes: parallel axes along which their grid points differ.
      of_copy: whether the source is a DMA.
    """

    wait: EventPlace
    source: EventPlace
    semaphore: str
    axes: tuple[int, ...]
    of_copy: bool
    when: int
    count: int = 1


@dataclass(eq=False, slots=True)
class UndecidedOrder:
    """Two events in an undetermined order, without a race.

    Attributes:
      first, second: descriptions of the events, as noun phrases.
      semaphore: semaphore that is read, if the second event is a read.
      value: value of that semaphore; it is larger if more signals came before the read.
      of_copies: whether both are DMAs.
    """

    place: EventPlace
    first: str
    second: str
    of_copies: bool
    semaphore: str | None = None
    value: int = 0


@dataclass(eq=False, slots=True)
class BlockVisit:
    """Visits of an output block by the grid points of one lane.

    Attributes:
      point: first grid point of the visits.
      store: first store, and number of its event.
      reads_first: whether the block is read before the lane has written to it.
      changes: whether the lane's stores change what the block holds.
      is_covered: whether one of them writes all of it.
    """

    window: Window
    block: Point
    point: Point
    store: EventPlace | None = None
    when: int = 0
    is_read: bool = False
    reads_first: bool = False
    changes: bool = False
    is_covered: bool = False

    @property
    def is_equal(self) -> bool:
        """True if the lane writes what another has written, without having read any of it."""
        return self.is_covered and not (self.changes or self.reads_first)

    def read(self) -> None:
        self.is_read = True
        self.reads_first = self.reads_first or self.store is None

    def wrote(self, step: ir.MachineStep, thread: Thread, when: int) -> None:
        if self.store is None:
            self.store = EventPlace.of(step, thread)
            self.when = when
