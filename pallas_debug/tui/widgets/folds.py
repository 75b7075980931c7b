"""Rows of lines: regions folded into their first line, and notes below lines."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence, Set

from pallas_debug.ir.operations import Region


class Folds:
    """Regions of lines that can be folded into their first line, and rows below lines.

    A line that ends one region and starts the next (`} else {`) stays visible.

    Args:
      folded: first lines of the regions that are folded at first.
    """

    def __init__(self, regions: Sequence[Region] = (), folded: Set[int] = frozenset()) -> None:
        opened = {region.start for region in regions}
        self._stops: dict[int, int] = {}
        self._regions = regions
        for region in regions:
            stop = region.stop - (region.stop in opened)
            if stop > region.start:
                self._stops[region.start] = max(stop, self._stops.get(region.start, 0))
        self._folded = folded & self._stops.keys()
        self._below: Mapping[int, int] = {}
        self._arrange()

    def hidden(self, line: int) -> int:
        """Return the number of lines folded into a line."""
        return self._stops[line] - line if line in self._folded else 0

    def below(self, line: int) -> int:
        """Return the number of rows below a line that belong to it."""
        return self._below.get(line, 0)

    def around(self, line: int) -> Region | None:
        """Return the innermost region that contains a line, including its ends."""
        found = None
        for region in self._regions:  # ordered by first line
            if region.start > line:
                break
            if region.stop >= line and region.start in self._stops:
                found = region
        return found

    def toggle(self, line: int) -> int | None:
        """Fold or unfold the innermost region around a line; return its first line."""
        if line in self._stops:
            start = line
        else:
            region = self.around(line)
            if region is None:
                return None
            start = region.start
        self._folded = self._folded ^ {start}
        self._arrange()
        return start

    def reveal(self, line: int) -> bool:
        """Unfold the regions that hide a line; return whether there were any."""
        hiding = {start for start in self._folded if start < line <= self._stops[start]}
        if hiding:
            self._folded = self._folded - hiding
            self._arrange()
        return bool(hiding)

    def put_below(self, below: Mapping[int, int]) -> None:
        """Set the number of rows below each line."""
        self._below = below
        self._arrange()

    def row_of(self, line: int) -> int:
        """Return the row of a line; for a hidden line, the row of the line it is folded into."""
        at = bisect.bisect_right(self._lines, line) - 1
        if at < 0:
            return line
        is_hidden = line <= self._lasts[at]
        return self._rows[at] if is_hidden else line + self._shifts[at]

    def line_of(self, row: int) -> int:
        """Return the line shown in a row."""
        at = bisect.bisect_right(self._rows, row) - 1
        if at < 0:
            return row
        line = self._lines[at]
        return line if row <= self._rows[at] + self.below(line) else row - self._shifts[at]

    def rows(self, count: int) -> int:
        """Return the number of rows of a text with `count` lines."""
        return count + (self._shifts[-1] if self._shifts else 0)

    def _arrange(self) -> None:
        """Find the visible lines that take another number of rows than one, in order.

        `_shifts` is the difference between rows and lines after each of them, `_lasts` the last
        line that it hides.
        """
        self._lines: list[int] = []
        self._rows: list[int] = []
        self._lasts: list[int] = []
        self._shifts: list[int] = []
        last, shift = -1, 0
        for line in sorted(self._folded | self._below.keys()):
            if line <= last:
                continue
            last = line + self.hidden(line)
            self._lines.append(line)
            self._rows.append(line + shift)
            self._lasts.append(last)
            shift += self.below(line) - self.hidden(line)
            self._shifts.append(shift)
