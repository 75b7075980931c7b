"""Accesses of a buffer that later ones may race with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.sanitizer.ordering.regions import Box, covers, first_meeting

MAX_ACCESSES = 1 << 14
"""Maximum number of accesses kept for a buffer; of more, the oldest are forgotten."""

FEW = 16
"""Number of accesses up to which each is looked at."""

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
    _bounds: np.ndarray = field(default_factory=lambda: np.zeros((0, 2, 0), np.int64))

    def unordered(self, task: Task, access: MemoryAccess) -> list[tuple[MemoryAccess, Box]]:
        """Accesses that conflict with one of `task` and are not ordered before it.

        Those that it replaces are forgotten: what follows it follows them, and what may race with
        them may race with it.
        """
        found, over = [], []
        for i in self._candidates(access):
            other = self.accesses[i]
            if task.follows(other.epoch):
                replaces = access.writes or not other.writes
                if self.drops or (replaces and covers(access.boxes, other.boxes)):
                    over.append(i)
            elif access.writes or other.writes:
                both = first_meeting(access.boxes, other.boxes)
                if both is not None:
                    found.append((other, both))
        for i in reversed(over):
            self._forget(i)
        return found

    def _candidates(self, access: MemoryAccess) -> Sequence[int]:
        """Positions of accesses that may have elements in common with one."""
        count = len(self.accesses)
        if self.drops or count <= FEW:
            return range(count)
        low, high = _bounds(access)
        bounds = self._bounds[:count]
        meets = (bounds[:, 0] < high) & (bounds[:, 1] > low)
        return [int(i) for i in np.flatnonzero(meets.all(axis=1))]

    def _forget(self, i: int) -> None:
        last = self.accesses.pop()
        if i < len(self.accesses):
            self.accesses[i] = last
            if not self.drops:
                self._bounds[i] = self._bounds[len(self.accesses)]

    def keep(self, access: MemoryAccess) -> None:
        if len(self.accesses) >= MAX_ACCESSES:
            oldest = MAX_ACCESSES // 4
            del self.accesses[:oldest]
            self._bounds = self._bounds[oldest:].copy()
        if not self.drops:
            self._bound(access)
        self.accesses.append(access)

    def _bound(self, access: MemoryAccess) -> None:
        count = len(self.accesses)
        if count == len(self._bounds):
            more = np.zeros((max(2 * count, 16), 2, len(access.boxes[0])), np.int64)
            more[:count] = self._bounds.reshape(count, *more.shape[1:])
            self._bounds = more
        self._bounds[count] = _bounds(access)

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


def _bounds(access: MemoryAccess) -> tuple[list[int], list[int]]:
    """First and last element of what is accessed in each dimension, the last excluded."""
    dims = [[part for part in dim if part] for dim in zip(*access.boxes, strict=True)]
    low = [min((part.start for part in dim), default=0) for dim in dims]
    return low, [max((part[-1] + 1 for part in dim), default=0) for dim in dims]
