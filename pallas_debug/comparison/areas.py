"""Parts of a buffer: which elements a query is about, and which of them a write reaches."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from pallas_debug.comparison.writes import Index, LoggedRead, LoggedWrite

Point = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """Elements of a buffer.

    Attributes:
      start: first corner of a box that contains them.
      mask: which elements of the box they are.
    """

    start: Point
    mask: np.ndarray

    @classmethod
    def of_element(cls, element: Point) -> Area:
        return cls(element, np.ones((1,) * len(element), bool))

    @classmethod
    def of_read(cls, read: LoggedRead) -> Area:
        """Elements that a read may read."""
        if read.index is None:
            return cls((0,) * len(read.buffer.shape), np.ones(read.buffer.shape, bool))
        return cls.of_index(read.index)

    @classmethod
    def of_index(cls, index: Index) -> Area:
        """Elements that an index selects, or may select."""
        ends = [_ends(entry) for entry in index]
        start, shape = tuple(a for a, _ in ends), tuple(b - a for a, b in ends)
        return cls(start, cls(start, np.ones(shape, bool)).reached(index))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index."""
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.mask.shape, strict=True))

    @property
    def element(self) -> Point | None:
        """The only element; None if there are several."""
        return self.start if self.mask.size == 1 else None

    def reached(self, index: Index | None) -> np.ndarray:
        """Mask of the elements that an index selects, or may select."""
        if index is None:
            return self.mask
        selected = []
        for entry, start, size in zip(index, self.start, self.mask.shape, strict=True):
            at = np.arange(start, start + size)
            if isinstance(entry, slice):
                first, step = entry.start, entry.step or 1
                found = (at >= first) & (at < entry.stop) & ((at - first) % step == 0)
            else:
                found = np.isin(at, entry)
            if not found.any():
                return np.zeros_like(self.mask)
            selected.append(found)
        hits = functools.reduce(np.multiply.outer, selected, np.bool_(True))
        return np.asarray(self.mask & hits)

    def meets(self, other: Area) -> bool:
        """Return whether two areas have an element in common."""
        mask = self.reached(other.slices)
        if not mask.any() or other.mask.all():
            return bool(mask.any())
        places = np.argwhere(mask) + self.start - other.start
        return bool(other.mask[tuple(places.T)].any())

    def without(self, hits: np.ndarray) -> Area:
        return Area(self.start, self.mask & ~hits)


def aligned(read: LoggedRead, write: LoggedWrite, element: Point) -> Point | None:
    """Element of a read at the same position as an element of a write; None if it is unknown."""
    offset = []
    if read.index is None or write.index is None:
        return None
    for entry, at in zip(write.index, element, strict=True):
        if isinstance(entry, np.ndarray):
            return None
        if isinstance(entry, slice):
            offset.append((at - entry.start) // (entry.step or 1))
    found = []
    slices = [entry for entry in read.index if isinstance(entry, slice)]
    if len(slices) > len(offset) or any(isinstance(e, np.ndarray) for e in read.index):
        return None
    positions = iter(offset[len(offset) - len(slices) :])
    for entry in read.index:
        if not isinstance(entry, slice):
            found.append(int(entry))
            continue
        count = max(-(-(entry.stop - entry.start) // (entry.step or 1)), 1)
        found.append(entry.start + min(next(positions), count - 1) * (entry.step or 1))
    return tuple(found)


def _ends(entry: slice | int | np.ndarray) -> tuple[int, int]:
    if isinstance(entry, slice):
        return entry.start, max(entry.stop, entry.start)
    if isinstance(entry, np.ndarray):
        return (int(entry.min()), int(entry.max()) + 1) if entry.size else (0, 0)
    return int(entry), int(entry) + 1
