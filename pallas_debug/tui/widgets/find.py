"""Incremental search in a view: counts hits as they are found, without delaying keys.

A text is searched in pieces that take a few milliseconds; keys are handled in between.
"""

from __future__ import annotations

import bisect
import itertools
import time
from array import array
from collections.abc import Iterator

from textual import work
from textual.worker import Worker

from pallas_debug.ir.patterns import Pattern, Query, spans_of
from pallas_debug.ir.search import finder
from pallas_debug.tui.model.document import Lines
from pallas_debug.tui.model.search import query_of
from pallas_debug.tui.widgets.cells import Mark
from pallas_debug.tui.widgets.lineview import LineView, ViewMessage, breathe

PIECE = 1 << 19
"""Bytes to search at a time: takes about 1 ms, and 5 ms for a demanding expression."""

AT_ONCE = 2
"""Number of pieces to search immediately, so that the hits of a small text do not flicker."""

_REPORT_EVERY = 0.3
"""Seconds between progress reports."""


def search_pieces(source: Lines, query: Query, hits: array[int]) -> Iterator[None]:
    """Search a source piece by piece, and add lines with a hit to `hits`; yield after each."""
    find = finder(query)
    line = 0
    for data in source.pieces(PIECE):
        position = 0
        for start, _ in find(data, len(data)):
            line += data.count(b"\n", position, start)
            position = start
            if not hits or hits[-1] != line:  # parts of a very long line overlap
                hits.append(line)
        line += data.count(b"\n", position)
        yield


class FindView(LineView):
    """Line view with incremental search."""

    class Found(ViewMessage):
        """Message: more hits were found, or the search ended."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.source = Lines()
        self.sought: Query | None = None
        self.problem = ""
        """Reason why the search text is not used as a regular expression."""
        self.hits = array("Q")
        """Known lines with a hit, in order."""
        self._pattern: Pattern | None = None
        self._search: Worker[None] | None = None
        self._from = self._landed = 0
        self._is_hit_wanted = False

    def search(self, text: str | None) -> None:
        """Search for a text; without one, end the search.

        Called for every character typed: the cursor moves to the first hit after the line at
        which typing started.
        """
        if self.sought is None or self.cursor != self._landed:
            self._from = self.cursor
        self.sought, self.problem = query_of(text) if text else (None, "")
        self._pattern = self.sought.compiled() if self.sought else None
        self._landed = self.cursor
        self._is_hit_wanted = self.sought is not None
        self._search_again()

    def next_hit(self, direction: int) -> None:
        """Move the cursor to the next line with a hit, or the previous one, wrapping around."""
        found = self._beyond(self.cursor, direction)
        if found is None and direction > 0 and self.searching:
            self._from, self._is_hit_wanted = self.cursor + 1, True
        elif self.hits:
            last = self.hits[0] if direction > 0 else self.hits[-1]
            self._move_to(last if found is None else found)

    @property
    def searching(self) -> bool:
        """True if there may be more hits."""
        return self._search is not None

    @property
    def where(self) -> str:
        """Position among the lines with a hit: `3/41`, or `3/41+` while there may be more."""
        if self.sought is None:
            return ""
        before = bisect.bisect_right(self.hits, self.cursor)
        return f"{before}/{len(self.hits)}{'+' * self.searching}"

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

    # For subclasses.

    def go_to_hit(self, line: int) -> None:
        """Move the cursor to a line with a hit."""
        self.cursor = line

    # The search itself.

    def _search_again(self) -> None:
        """Search from the first line."""
        self.hits = array("Q")
        if self._search is not None:
            self._search.cancel()
            self._search = None
        self.refresh()
        if self.sought is None or not self.is_running:
            return
        pieces = search_pieces(self.source, self.sought, self.hits)
        is_whole = sum(1 for _ in itertools.islice(pieces, AT_ONCE)) < AT_ONCE
        self._go_if_wanted()
        if is_whole:
            self._finish()
        else:
            self._search = self._search_rest(pieces)

    @work(exclusive=True, group="find")
    async def _search_rest(self, pieces: Iterator[int]) -> None:
        reported = time.monotonic()
        await breathe()
        for _ in pieces:
            self._go_if_wanted()
            if time.monotonic() - reported > _REPORT_EVERY:
                reported = time.monotonic()
                self.post_message(self.Found(self))
            await breathe()
        self._go_if_wanted()
        self._search = None
        self._finish()

    def _go_if_wanted(self) -> None:
        if self._is_hit_wanted and (found := self._beyond(self._from - 1, 1)) is not None:
            self._move_to(found)

    def _finish(self) -> None:
        if self._is_hit_wanted:
            self._move_to(self.hits[0] if self.hits else self._from)
        self.refresh()
        self.post_message(self.Found(self))

    def _move_to(self, line: int) -> None:
        self._is_hit_wanted = False
        self._landed = line
        self.go_to_hit(line)

    def _beyond(self, line: int, direction: int) -> int | None:
        if direction > 0:
            at = bisect.bisect_right(self.hits, line)
            return self.hits[at] if at < len(self.hits) else None
        at = bisect.bisect_left(self.hits, line)
        return self.hits[at - 1] if at else None
