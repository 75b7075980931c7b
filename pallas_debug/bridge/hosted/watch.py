"""Grid points for the sanitizer to watch: `0:4,*,7`, an entry for each axis of the grid.

An entry is a position, a range `start:stop` as in Python (either may be omitted, and negative
numbers count from the end), or `*` for the whole axis. Several selections are separated by `;`, and
a selection that begins with a name and `=` applies to the kernel of that name.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.errors import UsageError

_ENTRY = re.compile(r"\*|(?P<index>-?\d{1,9})|(?P<start>-?\d{1,9})?:(?P<stop>-?\d{1,9})?", re.ASCII)

Entry = int | slice
"""A position on an axis, or a range of positions."""


@dataclass(frozen=True)
class WatchedPart:
    """A selection of grid points.

    Attributes:
      text: text as given, without the kernel's name.
      kernel: name of the kernel; None for all kernels whose grid has that many axes.
      entries: one entry for each axis.
    """

    text: str
    kernel: str | None
    entries: tuple[Entry, ...]

    def ranges(self, grid: Sequence[int]) -> tuple[range, ...]:
        """Positions on each axis of a grid, without positions outside it."""
        found = []
        for entry, size in zip(self.entries, grid, strict=True):
            axis = range(size)
            if isinstance(entry, slice):
                found.append(axis[entry])
            else:
                found.append(axis[entry : entry + 1 or None] if -size <= entry < size else range(0))
        return tuple(found)


@dataclass(frozen=True)
class GridWatch:
    """Grid points to watch, for any number of kernels.

    Attributes:
      text: as it was given.
    """

    text: str
    parts: tuple[WatchedPart, ...]

    def of(self, kernel: str, axes: int) -> tuple[WatchedPart, ...]:
        """The parts for a kernel whose grid has this number of axes; none if it is not restricted.

        Parts that name the kernel are returned regardless of their number of axes.
        """
        named = tuple(part for part in self.parts if part.kernel == kernel)
        return named or tuple(
            part for part in self.parts if part.kernel is None and len(part.entries) == axes
        )


@dataclass(frozen=True)
class WatchedPoints:
    """Grid points of a kernel that are watched.

    Attributes:
      grid: sizes of the grid's axes.
      texts: texts of the selections.
      boxes: boxes of grid points, one for each selection, with a range for each axis; they may
        overlap.
    """

    grid: tuple[int, ...]
    texts: tuple[str, ...]
    boxes: tuple[tuple[range, ...], ...]

    @property
    def text(self) -> str:
        return ";".join(self.texts)

    @property
    def empty(self) -> tuple[str, ...]:
        """Selections without any grid point."""
        return tuple(text for text, box in zip(self.texts, self.boxes, strict=True) if not all(box))

    def __contains__(self, point: tuple[int, ...]) -> bool:
        return any(all(i in axis for i, axis in zip(point, box, strict=True)) for box in self.boxes)

    @property
    def count(self) -> int:
        """Number of grid points in any of the boxes."""
        if len(self.boxes) == 1:
            return math.prod(map(len, self.boxes[0]))
        return self._count(self.boxes)

    def _count(self, boxes: Sequence[tuple[range, ...]]) -> int:
        """Count by the first axis: positions that are in the same boxes have the same count."""
        if not boxes:
            return 0
        if not boxes[0]:
            return 1
        cuts = sorted({cut for first, *_ in boxes for cut in (first.start, first.stop)})
        total = 0
        for low, high in itertools.pairwise(cuts):
            inner = [rest for first, *rest in boxes if first.start <= low < first.stop]
            total += (high - low) * self._count([tuple(rest) for rest in inner])
        return total

    @property
    def total(self) -> int:
        """Number of grid points of the grid."""
        return math.prod(self.grid)


def parse(text: str) -> GridWatch:
    """Parse grid points to watch.

    Raises:
      UsageError: an entry is invalid; the message names it.
    """
    parts = [_part(part.strip(), text) for part in text.split(";")]
    return GridWatch(text, tuple(parts))


def _part(text: str, whole: str) -> WatchedPart:
    name, equals, axes = text.rpartition("=")
    entries = tuple(_entry(entry.strip(), whole) for entry in axes.split(","))
    if equals and not name.strip():
        raise UsageError(_wrong(whole, "a name is missing before `=`"))
    return WatchedPart(axes.strip(), name.strip() if equals else None, entries)


def _entry(text: str, whole: str) -> Entry:
    found = _ENTRY.fullmatch(text)
    if found is None:
        raise UsageError(
            _wrong(whole, f"{text!r} is not a position" if text else "an axis is empty")
        )
    if text == "*":
        return slice(None)
    if found["index"] is not None:
        return int(text)
    start, stop = (None if part is None else int(part) for part in found.group("start", "stop"))
    return slice(start, stop)


def _wrong(text: str, why: str) -> str:
    return (
        f"{text!r} does not choose grid points to watch: {why}. Write a position, a range or `*` "
        "for each axis of the grid, as in `0:4,*,7`; `kernel=0:4,*` for one kernel; join several "
        "by `;`"
    )
