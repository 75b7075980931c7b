"""Facts about the order of a run, as its observer finds them."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.sanitizer.ordering.history import MemoryAccess
from pallas_debug.machine.sanitizer.ordering.regions import Box
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A step that was executed, and where."""

    step: ir.MachineStep
    device: int
    point: Point
    iterations: Point


@dataclass(eq=False, slots=True)
class RaceFact:
    """Two accesses that nothing orders.

    Attributes:
      earlier, later: in the order of this run.
      overlap: what both access.
      axes: parallel axes on which their grid points differ.
      waited: semaphores waited for since the DMA of the earlier one was started, if it is one.
      was_awaited: whether that of the DMA is among them.
      alike: DMAs under way on its semaphore, if a wait took the bytes of fewer.
      when: number of the event.
      heard: threads whose signals the one that should have waited has waited for, where the two
        sides are on different cores.
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
        """Whether a DMA replaces data of an earlier one whose arrival a read has waited for."""
        fills = self.later.copy is not None and self.later.writes and self.later.was_filled
        return fills and self.was_awaited and not self.earlier.writes

    @property
    def second(self) -> MemoryAccess:
        """The side that should have waited for the other one: that which reads."""
        return self.later if self.later.writes == self.earlier.writes else (
            self.earlier if self.later.writes else self.later
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class EarlyCopy:
    """A DMA to a device that may not have entered the kernel yet.

    Attributes:
      names: of its source and destination, with the slices.
      heard: devices whose signals the sender has waited for.
    """

    place: EventPlace
    names: tuple[str, str]
    destination: MemoryBuffer
    operand: str
    heard: tuple[int, ...]
    when: int
    count: int = 1


@dataclass(eq=False, slots=True)
class LaneWait:
    """A wait for what only another grid point of a parallel axis has started or signalled.

    Attributes:
      wait, source: places of the wait, and of the start of the DMA or of the signal.
      semaphore: its name.
      axes: parallel axes on which their grid points differ.
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
    """Two events in an order that nothing determines, but which is no race.

    Attributes:
      first, second: what happens, as a noun phrase.
      semaphore: that is read, if the second event is that.
      value: of that semaphore; the more, the more came before the read.
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
      point: the first of them.
      store: the first store, and number of its event.
      reads_first: whether the block is read before the lane has written anything to it.
    """

    window: Window
    block: Point
    point: Point
    store: EventPlace | None = None
    when: int = 0
    is_read: bool = False
    reads_first: bool = False

    def read(self) -> None:
        self.is_read = True
        self.reads_first = self.reads_first or self.store is None

    def wrote(self, step: ir.MachineStep, thread: Thread, when: int) -> None:
        if self.store is None:
            self.store = EventPlace(step, thread.device, thread.point, thread.iterations)
            self.when = when
