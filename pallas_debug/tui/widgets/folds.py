"""Regions of a text that can be folded into their first line."""

from __future__ import annotations

import bisect
from collections.abc import Sequence, Set

from pallas_debug.ir.operations import Region


class Folds:
    """Regions of lines that can be folded into their first line.

    A line that ends one region and starts the next (`} else {`) stays visible.
    """

    def __init__(self, regions: Sequence[Region] = ()) -> None:
        opened = {region.start for region in regions}
        self._stops: dict[int, int] = {}
        self._regions = regions
        for region in regions:
            stop = region.stop - (region.stop in opened)
            if stop > region.start:
                self._stops[region.start] = max(stop, self._stops.get(region.start, 0))
        self._fold(set())

    def hidden(self, line: int) -> int:
        """Return the number of lines folded into a line."""
        return self._stops[line] - line if line in self._folded else 0

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
        self._fold(self._folded ^ {start})
        return start

    def reveal(self, line: int) -> bool:
        """Unfold the regions that hide a line; return whether there were any."""
        hiding = {start for start in self._folded if start < line <= self._stops[start]}
        if hiding:
            self._fold(self._folded - hiding)
        return bool(hiding)

    def row_of(self, line: int) -> int:
        """Return the row of a line; for a hidden line, the row of the line it is folded into."""
        at = bisect.bisect_left(self._starts, line) - 1
        if at < 0:
            return line
        start = self._starts[at]
        before = self._hidden[at - 1] if at else 0
        size = self._hidden[at] - before
        return start - before if line <= start + size else line - self._hidden[at]

    def line_of(self, row: int) -> int:
        """Return the line shown in a row."""
        at = bisect.bisect_left(self._rows, row) - 1
        return row + (self._hidden[at] if at >= 0 else 0)

    def rows(self, count: int) -> int:
        """Return the number of rows of a text with `count` lines."""
        return count - (self._hidden[-1] if self._hidden else 0)

    def _fold(self, folded: Set[int]) -> None:
        """Fold these regions, and find the outermost ones and the lines hidden up to each."""
        self._folded = folded
        self._starts: list[int] = []
        self._rows: list[int] = []
        self._hidden: list[int] = []
        end = hidden = 0
        for start in sorted(folded):
            if self._starts and start <= end:
                continue
            end = self._stops[start]
            self._starts.append(start)
            self._rows.append(start - hidden)
            hidden += end - start
            self._hidden.append(hidden)
