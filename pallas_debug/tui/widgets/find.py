"""Incremental search in a view of lines; in a thread where they are those of a large file."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

from textual import work
from textual.worker import get_current_worker

from pallas_debug.ir.patterns import Pattern, Query, spans_of
from pallas_debug.ir.search import finder
from pallas_debug.tui.model import Throttle
from pallas_debug.tui.model.document import Document
from pallas_debug.tui.model.search import query_of
from pallas_debug.tui.widgets.cells import Mark
from pallas_debug.tui.widgets.lineview import LineView, ViewMessage


def hits_in(pieces: Iterable[bytes], query: Query) -> Iterator[list[int]]:
    """Yield the lines with a hit, from 0, for each piece of a text."""
    find, line = finder(query), 0
    for data in pieces:
        position = 0
        found: list[int] = []
        for start, _ in find(data, len(data)):
            line += data.count(b"\n", position, start)
            position = start
            found.append(line)
        line += data.count(b"\n", position)
        yield found


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
        self.searching = False
        """True while a search runs in a thread; `hits` is incomplete until it ends."""

    def search(self, text: str | None) -> None:
        """Search for a text; without one, end the search.

        Called for every character typed: the cursor moves to the first hit after the line at
        which typing started.
        """
        if self.sought is None or self.cursor != self._landed:
            self._from = self.cursor
        self.sought, self.problem = query_of(text) if text else (None, "")
        self._pattern = self.sought.compiled() if self.sought else None
        self.find(is_typed=True)

    def find(self, *, is_typed: bool = False) -> None:
        """Find the hits in lines that changed, or of an expression that was typed."""
        if self.is_running:
            self.workers.cancel_group(self, "find")
        lines, query = self.lines, self.sought
        self.searching = query is not None and isinstance(lines, Document)
        if query is not None and isinstance(lines, Document):
            self._find_in_background(lines, query, is_typed)
            self._take_hits([], False)
            return
        data = "\n".join(lines).encode(errors="replace") if query else b""
        hits = hits_in([data], query) if query else ()
        self._take_hits([hit for found in hits for hit in found], is_typed)

    @work(thread=True, exclusive=True, group="find")
    def _find_in_background(self, lines: Document, query: Query, is_typed: bool) -> None:
        worker, throttle = get_current_worker(), Throttle()
        hits: list[int] = []
        for found in hits_in(lines.pieces(), query):
            if worker.is_cancelled:
                return
            hits += found
            throttle.rest()
        self.app.call_from_thread(self._take_found, query, hits, is_typed)

    def _take_found(self, query: Query, hits: list[int], is_typed: bool) -> None:
        if query is self.sought:
            self.searching = False
            self._take_hits(hits, is_typed)

    def _take_hits(self, hits: list[int], is_typed: bool) -> None:
        """Show the hits; of a typed expression, go to the first."""
        self.hits = hits
        if is_typed and self.sought is not None:
            first = hits[0] if hits else self._from
            found = self._beyond(self._from - 1, 1)
            self.cursor = first if found is None else found
        self._landed = self.cursor
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
        return "searching" if self.searching else f"{before}/{len(self.hits)}"

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
