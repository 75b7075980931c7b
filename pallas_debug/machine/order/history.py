"""Accesses of a buffer that may race with later ones, as boxes of its elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.regions import slice_text
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.gpu import accesses
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion

Box = tuple[range, ...]
"""Range along each dimension of a buffer."""

MAX_BOXES = 256
"""Maximum number of boxes of an access; the order of larger gathers is not checked."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole array."""
    return tuple(range(n) for n in shape)


def boxes(region: MemoryRegion) -> tuple[Box, ...]:
    """Return disjoint boxes that exactly cover a region; none if there would be too many."""
    shape = region.buffer.content.shape
    if region.is_whole:
        return (whole(shape),)
    found: list[Box] = []
    for index in region.ranges():
        choices = [_ranges(entry, n) for entry, n in zip(index, shape, strict=False)]
        if len(found) + math.prod(map(len, choices)) > MAX_BOXES:
            return ()
        rest = whole(shape[len(index) :])
        arrays = [entry for entry in index if isinstance(entry, np.ndarray)]
        if len(arrays) > 1 and any(array.size > 1 for array in arrays):
            return ()  # the elements are pairs, not a product
        found += [(*box, *rest) for box in itertools.product(*choices)]
    return tuple(found)


def _ranges(entry: Entry, size: int) -> list[range]:
    if isinstance(entry, slice):
        return [range(*entry.indices(size))]
    if not isinstance(entry, np.ndarray):
        return [range(int(entry), int(entry) + 1)]
    positions = [int(i) for i in np.unique(entry)]
    if not positions:
        return [range(0)]
    if len(positions) == positions[-1] - positions[0] + 1:
        return [range(positions[0], positions[-1] + 1)]
    return [range(i, i + 1) for i in positions]


def masked(region: MemoryRegion, mask: np.ndarray) -> tuple[Box, ...]:
    """Return the box where a mask is true; none if the elements are no product of ranges."""
    found = boxes(region)
    is_true = np.broadcast_to(mask, region.shape)
    if is_true.all():
        return found
    index = region.index or ()
    if not is_true.any() or len(found) != 1 or any(isinstance(e, np.ndarray) for e in index):
        return ()
    parts = list(found[0])
    dims = [dim for dim, entry in enumerate(index) if isinstance(entry, slice)]
    for axis, dim in enumerate(dims):
        hits = np.flatnonzero(
            np.moveaxis(is_true, axis, 0).reshape(len(parts[dim]), -1).any(axis=1)
        )
        parts[dim] = parts[dim][hits[0] : hits[-1] + 1]
    return (tuple(parts),) if is_true.sum() == math.prod(map(len, parts)) else ()


def selects(index: Sequence[Entry], element: Sequence[int]) -> bool:
    """Return whether an index into a buffer selects an element of it."""
    found = [
        n in range(entry.start, entry.stop, entry.step or 1)
        if isinstance(entry, slice)
        else np.equal(entry, n)
        for entry, n in zip(index, element, strict=True)
    ]
    return bool(np.logical_and.reduce(np.broadcast_arrays(*found)).any())


def meet(a: Box, b: Box) -> Box | None:
    """Intersect two boxes; None if they are disjoint."""
    found = []
    for one, other in zip(a, b, strict=True):
        if one.step == 1 and other.step == 1:
            both = range(max(one.start, other.start), min(one.stop, other.stop))
        else:
            both = _common(one, other)
        if not both:
            return None
        found.append(both)
    return tuple(found)


def _common(a: range, b: range) -> range:
    """Intersect two ranges with steps."""
    first, last = max(a.start, b.start), min(a.stop, b.stop)
    step = math.lcm(a.step, b.step)
    start = a.start + -(-max(first - a.start, 0) // a.step) * a.step
    for number in range(start, min(last, start + step), a.step):
        if number in b:
            return range(number, last, step)
    return range(0)


def first_meeting(a: Sequence[Box], b: Sequence[Box]) -> Box | None:
    """Return the intersection of the first two boxes that share elements."""
    for one in a:
        for other in b:
            found = meet(one, other)
            if found is not None:
                return found
    return None


def covers(a: Sequence[Box], b: Sequence[Box]) -> bool:
    """Return whether each box of `b` is within a box of `a`."""
    return all(any(_holds(outer, inner) for outer in a) for inner in b)


def _holds(outer: Box, inner: Box) -> bool:
    return all(
        big == small
        or (big.step == 1 and big.start <= small.start and (not small or small[-1] < big.stop))
        for big, small in zip(outer, inner, strict=True)
    )


def box_text(name: str, box: Box) -> str:
    """Unparse a box: `tiles_ref[0, 0:8, 0:128]`."""
    if not box:
        return name
    entries = [
        str(part.start) if len(part) == 1 else slice_text(part.start, len(part), part.step)
        for part in box
    ]
    return f"{name}[{', '.join(entries)}]"


def boxes_text(name: str, found: Sequence[Box], shape: Sequence[int]) -> str:
    """Unparse several boxes; the name alone if they cover the whole buffer."""
    if not found or (len(found) == 1 and found[0] == whole(shape)):
        return name
    return " and ".join(box_text(name, box) for box in found[:2]) + (" …" if found[2:] else "")


MAX_ACCESSES = 1 << 14
"""Maximum number of accesses kept for a buffer; beyond it, the oldest are forgotten."""

FEW = 16
"""Maximum number of accesses that are examined one by one."""

MAX_UNREAD = 256
"""Maximum number of places in a buffer that are recorded as unread."""


@dataclass(eq=False, slots=True)
class MemoryAccess:
    """An access of a buffer by a core, a DMA or the pipeline.

    Attributes:
      epoch: epoch of the accessing task.
      thread: number of the thread that makes the access, or that started the DMA.
      step: step of the access; None for the pipeline.
      names: names of the DMA's source and destination.
      block: block that the pipeline moves.
      parallel_point: coordinates of a pipeline's grid point along the parallel axes.
      clobbers: whether a DMA replaces data that nothing has read since it was written.
      operand: name of the operand in a kernel for a GPU; None for that of the buffer.
    """

    buffer: MemoryBuffer
    boxes: tuple[Box, ...]
    writes: bool
    epoch: int
    thread: int
    point: tuple[int, ...]
    iterations: tuple[int, ...] = ()
    step: ir.MachineStep | None = None
    copy: DmaCopy | None = None
    names: tuple[str, str] | None = None
    block: tuple[int, ...] | None = None
    parallel_point: tuple[int, ...] = ()
    clobbers: bool = False
    operand: str | None = None

    @property
    def adds(self) -> bool:
        return self.copy is not None and self.copy.adds and self.writes

    @property
    def is_remote(self) -> bool:
        """True for a DMA between devices."""
        return self.copy is not None and self.copy.sent is not None

    @property
    def is_atomic(self) -> bool:
        return self.buffer.type.space == "gmem" and accesses.is_atomic(self.step)

    @property
    def counter(self) -> Counter:
        """Semaphore that the DMA signals when it is done with this buffer."""
        assert self.copy is not None
        sent = None if self.writes else self.copy.sent
        return sent or self.copy.received

    @property
    def is_of_pipeline(self) -> bool:
        return self.step is None


@dataclass(eq=False, slots=True)
class AccessHistory:
    """Accesses of one buffer that are not known to precede all later accesses.

    Attributes:
      drops: whether an access can be forgotten once any task follows it: there is only one thread.
      unread: places that were written, and not read since.
    """

    drops: bool
    accesses: list[MemoryAccess] = field(default_factory=list)
    unread: list[tuple[Box, ...]] = field(default_factory=list)
    _bounds: np.ndarray = field(default_factory=lambda: np.zeros((0, 2, 0), np.int64))

    def unordered(self, task: Task, access: MemoryAccess) -> list[tuple[MemoryAccess, Box]]:
        """Return conflicting accesses that are not ordered before an access of `task`.

        Accesses that it replaces are forgotten: later accesses that follow it also follow them, and
        later accesses that may race with them may race with it.
        """
        found, over = [], []
        for i in self._candidates(access):
            other = self.accesses[i]
            if task.follows(other.epoch):
                replaces = access.writes or not other.writes
                # Later atomic updates may race with a plain access, but not with an atomic one.
                replaces &= other.is_atomic or not access.is_atomic
                # A DMA follows its own read of its source, and its thread does not.
                is_over = self.drops and (access.copy is None or access.copy is not other.copy)
                if is_over or (replaces and covers(access.boxes, other.boxes)):
                    over.append(i)
            elif access.writes or other.writes:
                both = first_meeting(access.boxes, other.boxes)
                if both is not None:
                    found.append((other, both))
        for i in reversed(over):
            self._forget(i)
        return found

    def _candidates(self, access: MemoryAccess) -> Sequence[int]:
        """Positions of accesses that may share elements with this one."""
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

    def is_unread(self, access: MemoryAccess) -> bool:
        """Return whether an access writes over data that has not been read."""
        return access.writes and any(first_meeting(access.boxes, at) for at in self.unread)

    def read(self, boxes: tuple[Box, ...]) -> None:
        self.unread = [place for place in self.unread if first_meeting(boxes, place) is None]

    def wrote(self, boxes: tuple[Box, ...]) -> None:
        if len(self.unread) >= MAX_UNREAD:
            self.unread.clear()
        self.unread = [place for place in self.unread if not covers(boxes, place)]
        self.unread.append(boxes)


def _bounds(access: MemoryAccess) -> tuple[list[int], list[int]]:
    """First and last accessed element in each dimension, the last exclusive."""
    dims = [[part for part in dim if part] for dim in zip(*access.boxes, strict=True)]
    low = [min((part.start for part in dim), default=0) for dim in dims]
    return low, [max((part[-1] + 1 for part in dim), default=0) for dim in dims]
