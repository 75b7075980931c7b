"""Incremental search in a view of lines in memory."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from pallas_debug.ir.patterns import Pattern, Query, spans_of
from pallas_debug.ir.search import finder
from pallas_debug.tui.model.search import query_of
from pallas_debug.tui.widgets.cells import Mark
from pallas_debug.tui.widgets.lineview import LineView, ViewMessage


def hits_in(lines: Sequence[str], query: Query) -> Iterator[int]:
    """Yield the lines with a hit, from 0."""
    data = "\n".join(lines).encode(errors="replace")
    line = position = 0
    for start, _ in finder(query)(data, len(data)):
        line += data.count(b"\n", position, start)
        position = start
        yield line


class FindView(LineView):
    """Line view with incremental search."""

    class Found(ViewMessage):
        """Message: the hits changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[str] = ()
        self.sought: Query | None = None
        self.problem = ""
        """Reason why the search text is not used as a regular expression."""
        self.hits: list[int] = []
        """Lines with a hit, in order."""
        self._pattern: Pattern | None = None
        self._from = self._landed = 0

    def search(self, text: str | None) -> None:
        """Search for a text; without one, end the search.

        Called for every character typed: the cursor moves to the first hit after the line at
        which typing started.
        """
        if self.sought is None or self.cursor != self._landed:
            self._from = self.cursor
        self.sought, self.problem = query_of(text) if text else (None, "")
        self._pattern = self.sought.compiled() if self.sought else None
        self.find()
        if self.sought is not None:
            first = self.hits[0] if self.hits else self._from
            found = self._beyond(self._from - 1, 1)
            self.cursor = first if found is None else found
        self._landed = self.cursor

    def find(self) -> None:
        """Find the hits in lines that changed."""
        self.hits = list(hits_in(self.lines, self.sought)) if self.sought else []
        self.refresh()
        self.post_message(self.Found(self))

    def next_hit(self, direction: int) -> None:
        """Move the cursor to the next line with a hit, or the previous one, wrapping around."""
        if self.hits:
            found = self._beyond(self.cursor, direction)
            last = self.hits[0] if direction > 0 else self.hits[-1]
            self.cursor = self._landed = last if found is None else found

    @property
    def where(self) -> str:
        """Position among the lines with a hit, such as `3/41`."""
        if self.sought is None:
            return ""
        before = bisect.bisect_right(self.hits, self.cursor)
        return f"{before}/{len(self.hits)}"

    def mark(self, query: Query | None) -> None:
        """Highlight the hits of another search, unless this view is being searched."""
        if self.sought is None:
            self._pattern = query.compiled() if query is not None else None
            self.refresh()

    def found_in(self, text: str) -> list[Mark]:
        """Return the hits in a text that is about to be drawn."""
        if self._pattern is None:
            return []
        return [(start, stop, "hit") for start, stop in spans_of(self._pattern, text)]

    def _beyond(self, line: int, direction: int) -> int | None:
        if direction > 0:
            at = bisect.bisect_right(self.hits, line)
            return self.hits[at] if at < len(self.hits) else None
        at = bisect.bisect_left(self.hits, line)
        return self.hits[at - 1] if at else None
