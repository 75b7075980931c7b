"""Accesses of a buffer that later ones may race with."""

from __future__ import annotations

from dataclasses import dataclass, field

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.sanitizer.ordering.regions import Box, covers, first_meeting

MAX_ACCESSES = 4096
"""Maximum number of accesses kept for a buffer; of more, the oldest are forgotten."""

MAX_FILLS = 256
"""Maximum number of places of a buffer of which it is known whether they have been read."""


@dataclass(eq=False, slots=True)
class MemoryAccess:
    """An access of a buffer, by a core, a DMA or the pipeline.

    Attributes:
      epoch: of the task that makes it.
      thread: number of the thread that makes it, or that started the DMA.
      step: None for the pipeline.
      names: of the DMA's source and destination.
      block: that the pipeline moves.
      when: number of the event, in the order of the run.
      was_filled: whether a DMA fills what was written before.
      was_unread: whether that had not been read since.
    """

    buffer: MemoryBuffer
    boxes: tuple[Box, ...]
    writes: bool
    epoch: int
    thread: int
    when: int
    point: tuple[int, ...]
    iterations: tuple[int, ...] = ()
    step: ir.MachineStep | None = None
    copy: DmaCopy | None = None
    names: tuple[str, str] | None = None
    block: tuple[int, ...] | None = None
    lane: tuple[int, ...] = ()
    was_filled: bool = False
    was_unread: bool = False

    @property
    def adds(self) -> bool:
        return self.copy is not None and self.copy.adds and self.writes

    @property
    def counter(self) -> Counter:
        """The semaphore that the DMA signals when it is done with this buffer."""
        assert self.copy is not None
        if not self.writes and self.copy.sent is not None:
            return self.copy.sent
        return self.copy.received

    @property
    def is_of_pipeline(self) -> bool:
        return self.step is None


@dataclass(eq=False, slots=True)
class AccessHistory:
    """Accesses of one buffer that are not known to be before everything that follows.

    Attributes:
      drops: whether an access can be forgotten as soon as any task follows it: there is one thread.
      fills: places that were written, and whether they have not been read since.
    """

    drops: bool
    accesses: list[MemoryAccess] = field(default_factory=list)
    fills: dict[tuple[Box, ...], bool] = field(default_factory=dict)

    def unordered(self, task: Task, access: MemoryAccess) -> list[tuple[MemoryAccess, Box]]:
        """Accesses that conflict with one of `task` and are not ordered before it."""
        found, kept = [], []
        for other in self.accesses:
            if task.follows(other.epoch):
                replaces = access.writes or not other.writes
                if not self.drops and not (replaces and covers(access.boxes, other.boxes)):
                    kept.append(other)
                continue
            kept.append(other)
            if access.writes or other.writes:
                both = first_meeting(access.boxes, other.boxes)
                if both is not None:
                    found.append((other, both))
        self.accesses = kept
        return found

    def keep(self, access: MemoryAccess) -> None:
        self.accesses.append(access)
        if len(self.accesses) > MAX_ACCESSES:
            del self.accesses[: MAX_ACCESSES // 4]

    def has_filled(self, boxes: tuple[Box, ...]) -> list[bool]:
        """For each written place that `boxes` touch, whether it was not read since."""
        return [new for place, new in self.fills.items() if first_meeting(boxes, place) is not None]

    def read(self, boxes: tuple[Box, ...]) -> None:
        for place, new in self.fills.items():
            if new and first_meeting(boxes, place) is not None:
                self.fills[place] = False

    def filled(self, boxes: tuple[Box, ...]) -> None:
        if len(self.fills) >= MAX_FILLS:
            self.fills.clear()
        for place in [place for place in self.fills if covers(boxes, place)]:
            del self.fills[place]
        self.fills[boxes] = True
