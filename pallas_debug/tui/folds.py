"""Which regions of a text are folded, and where that leaves its lines on the screen."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence, Set

from pallas_debug.ir.operations import Region


class Folds:
    """Regions, some of them folded. A folded one leaves the line that opens it.

    A line that ends one region and opens the next (`} else {`) stays too.

    Args:
      folded: lines; the regions that open there are folded from the start.
    """

    def __init__(self, regions: Sequence[Region] = (), *, folded: Iterable[int] = ()) -> None:
        opened = {region.start for region in regions}
        self._stops: dict[int, int] = {}
        self._regions = regions
        for region in regions:
            stop = region.stop - (region.stop in opened)
            if stop > region.start:
                self._stops[region.start] = max(stop, self._stops.get(region.start, 0))
        self._folded = self._stops.keys() & folded
        self._starts: list[int] = []
        self._rows: list[int] = []
        self._hidden: list[int] = []
        self._count()

    @property
    def folded(self) -> Set[int]:
        """The lines that open the regions that are folded."""
        return self._folded

    def hidden(self, line: int) -> int:
        """Lines that are folded into a line; 0 where none are."""
        return self._stops[line] - line if line in self._folded else 0

    def around(self, line: int) -> Region | None:
        """The innermost region that holds a line, its ends among them."""
        found = None
        for region in self._regions:  # in the order of their first lines
            if region.start > line:
                break
            if region.stop >= line and region.start in self._stops:
                found = region
        return found

    def toggle(self, line: int) -> int | None:
        """Fold the innermost region around a line, or unfold it; the line that opens it."""
        if line in self._stops:
            start = line
        else:
            region = self.around(line)
            if region is None:
                return None
            start = region.start
        self._folded ^= {start}
        self._count()
        return start

    def fold_all(self) -> None:
        self._folded = set(self._stops)
        self._count()

    def unfold_all(self) -> None:
        self._folded = set()
        self._count()

    def reveal(self, line: int) -> bool:
        """Unfold whatever hides a line; whether anything did."""
        hiding = {start for start in self._folded if start < line <= self._stops[start]}
        self._folded -= hiding
        if hiding:
            self._count()
        return bool(hiding)

    def row_of(self, line: int) -> int:
        """Where a line stands among those that are seen; for a hidden one, what hides it."""
        at = bisect.bisect_left(self._starts, line) - 1
        if at < 0:
            return line
        start = self._starts[at]
        before = self._hidden[at - 1] if at else 0
        size = self._hidden[at] - before
        return start - before if line <= start + size else line - self._hidden[at]

    def line_of(self, row: int) -> int:
        """The line that stands there."""
        at = bisect.bisect_left(self._rows, row) - 1
        return row + (self._hidden[at] if at >= 0 else 0)

    def rows(self, count: int) -> int:
        """Lines that are seen, of so many."""
        return count - (self._hidden[-1] if self._hidden else 0)

    def _count(self) -> None:
        """The folded regions that no other one hides, and the lines hidden up to each."""
        self._starts, self._hidden, self._rows = [], [], []
        end = hidden = 0
        for start in sorted(self._folded):
            if self._starts and start <= end:
                continue
            end = self._stops[start]
            self._starts.append(start)
            self._rows.append(start - hidden)
            hidden += end - start
            self._hidden.append(hidden)
