"""The lines of a text that have a hit, with some around each: what is seen while others are not."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Sequence

CONTEXT = 2
"""Lines that are shown before a hit, and behind it."""


class Only:
    """Where the lines with hits stand on the screen. Hits may become known bit by bit, in order."""

    def __init__(self, context: int = CONTEXT) -> None:
        self._context = context
        self._of: Sequence[int] = ()
        self._forget()

    def _forget(self) -> None:
        self._known = 0
        # Stretches of lines that are seen: first line, line after the last, row of the first.
        self._starts, self._stops, self._rows = array("Q"), array("Q"), array("Q")

    def extend(self, hits: Sequence[int]) -> None:
        """Take over the hits that are new, or all where these are those of another search."""
        if hits is not self._of or len(hits) < self._known:
            self._forget()
            self._of = hits
        starts, stops, rows = self._starts, self._stops, self._rows
        for hit in hits[self._known :]:
            first, last = max(hit - self._context, 0), hit + self._context + 1
            if stops and first <= stops[-1]:
                stops[-1] = last
            else:
                rows.append(rows[-1] + stops[-1] - starts[-1] if stops else 0)
                starts.append(first)
                stops.append(last)
        self._known = len(hits)

    def rows(self, count: int) -> int:
        """Lines that are seen, of a text of so many."""
        if not self._starts:
            return 0
        return self._rows[-1] + max(min(self._stops[-1], count) - self._starts[-1], 0)

    def __contains__(self, line: int) -> bool:
        at = bisect.bisect_right(self._starts, line) - 1
        return at >= 0 and line < self._stops[at]

    def opens(self, line: int) -> bool:
        """Whether lines were left out right before this one."""
        at = bisect.bisect_left(self._starts, line)
        return line > 0 and at < len(self._starts) and self._starts[at] == line

    def row_of(self, line: int) -> int:
        """Where a line stands; for one that is not seen, the one before it that is."""
        at = bisect.bisect_right(self._starts, line) - 1
        if at < 0:
            return 0
        return self._rows[at] + min(line, self._stops[at] - 1) - self._starts[at]

    def line_of(self, row: int) -> int:
        """The line that stands there."""
        at = bisect.bisect_right(self._rows, row) - 1
        return row if at < 0 else self._starts[at] + row - self._rows[at]
