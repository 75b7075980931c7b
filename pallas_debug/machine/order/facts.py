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


@dataclass(eq=False, slots=True, kw_only=True)
class OrderFact:
    """A fault of order.

    Attributes:
      count: number of times it was seen.
    """

    count: int = 1


@dataclass(eq=False, slots=True)
class RaceFact(OrderFact):
    """Two unordered accesses.

    Attributes:
      earlier, later: the accesses, in the order of this run.
      overlap: elements that both access.
      axes: parallel axes along which their grid points differ.
      waited: semaphores that the other thread or DMA waited for between the start of a DMA and its
        own access; None if no DMA takes part, or two of several threads.
      clobbers: whether a DMA replaces data that the other side reads.
    """

    earlier: MemoryAccess
    later: MemoryAccess
    overlap: Box
    axes: tuple[int, ...]
    waited: tuple[str, ...] | None = None
    clobbers: bool = False


@dataclass(eq=False, slots=True)
class EarlyCopy(OrderFact):
    """A DMA to a device that may not have entered the kernel yet."""

    copy: StartedCopy


@dataclass(eq=False, slots=True)
class OverlappingCopy(OrderFact):
    """A DMA that reads elements, `overlap`, that it also writes."""

    copy: StartedCopy
    overlap: Box


@dataclass(eq=False, slots=True)
class CrossCoreWait(OrderFact):
    """A wait that only returns if another grid point of a parallel axis runs on the same core.

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
    """Visits of an output block by the grid points that share their place on the parallel axes.

    Attributes:
      point: first grid point of the visits.
      store: first store.
      reads_first: whether the block is read before they have written to it.
      changes: whether their stores change what the block holds.
      is_covered: whether one of them writes all of it.
    """

    window: Window
    block: Point
    point: Point
    store: EventPlace | None = None
    is_read: bool = False
    reads_first: bool = False
    changes: bool = False
    is_covered: bool = False

    @property
    def is_equal(self) -> bool:
        """True if they write what others have written, without having read any of it."""
        return self.is_covered and not (self.changes or self.reads_first)

    def read(self) -> None:
        self.is_read = True
        self.reads_first = self.reads_first or self.store is None
