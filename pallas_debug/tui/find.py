"""Search in what a pane shows: as it is typed, counted, and never in the way of a key.

The pane searches in pieces of a few milliseconds and lets the screen answer between any two.
"""

from __future__ import annotations

import bisect
import time
from array import array
from functools import partial
from typing import Literal

from textual.message import Message
from textual.worker import Worker

from pallas_debug.errors import PatternError
from pallas_debug.ir.chunks import newlines
from pallas_debug.ir.patterns import Pattern, Query
from pallas_debug.ir.search import finder
from pallas_debug.tui import highlight
from pallas_debug.tui.lines import Lines, ListLines
from pallas_debug.tui.lineview import LineView
from pallas_debug.tui.watchdog import TooSlow, at_most

_SMALLEST, _FIRST, _LARGEST = 1 << 12, 1 << 16, 1 << 22
"""Bytes that are searched at a time: at least, at first, at most."""

_MOMENT = 0.005
"""Seconds that a piece should take."""

_PATIENCE = 0.1
"""Seconds after which an expression that matches no piece, or no line, is given up."""

_TOLD = 0.3
"""Seconds between two times that progress is told."""

Case = Literal["smart", "ignored", "kept"]
_CASES: dict[Case, bool | None] = {"smart": None, "ignored": True, "kept": False}


class FindView(LineView):
    """Lines in which one can search."""

    class Found(Message):
        """There are more hits than before, or all of them are known."""

        def __init__(self, view: FindView) -> None:
            self.view = view
            super().__init__()

        @property
        def control(self) -> FindView:
            return self.view

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.source: Lines = ListLines([])
        self.sought: Query | None = None
        self.problem = ""
        """Why what was typed is not taken as a regular expression."""
        self.regex = True
        self.case: Case = "smart"
        self.hits = array("Q")
        """The lines that have one, in order, as far as they are known."""
        self._pattern: Pattern | None = None
        self._search: Worker[None] | None = None
        self._work: _Work | None = None
        self._from = self._landed = 0
        self._awaited = False

    # What a person asks for.

    def search(self, text: str | None) -> None:
        """Look for a text, from where the search began; none ends it.

        Whoever types on calls this again: the first hit behind the place at which the typing began
        is gone to as soon as it is known.
        """
        if self.sought is None or self.cursor != self._landed:
            self._from = self.cursor
        self.problem = ""
        self.sought = None
        if text:
            self.sought = Query(text=text, literal=not self.regex, ignore_case=_CASES[self.case])
            try:
                self.sought.compiled()
            except PatternError as error:
                self.problem = f"no regular expression: {error.reason}; searched as it stands"
                self.sought = Query(text=text, literal=True, ignore_case=_CASES[self.case])
        self._pattern = self.sought.compiled() if self.sought else None
        self._landed = self.cursor
        self._awaited = self.sought is not None
        self._search_again()

    def toggle_regex(self) -> None:
        """Take what is searched for as a regular expression, or as it stands."""
        self.regex = not self.regex
        self.search(self.sought.text if self.sought else None)

    def next_case(self) -> None:
        """Smart case, case ignored, case kept: one after the other."""
        order = list(_CASES)
        self.case = order[(order.index(self.case) + 1) % len(order)]
        self.search(self.sought.text if self.sought else None)

    def next_hit(self, direction: int, *, here: bool = False) -> None:
        """Put the cursor on the next line with a hit, or the previous one; from the end anew.

        Args:
          here: whether the line at hand counts.
        """
        found = self._beyond(self.cursor, direction, here)
        if found is None and direction > 0 and self.searching:
            self._from, self._awaited = self.cursor + (not here), True
        elif self.hits:
            last = self.hits[0] if direction > 0 else self.hits[-1]
            self._land(last if found is None else found)

    @property
    def searching(self) -> bool:
        """Whether there may be hits that are not known yet."""
        return self._search is not None

    @property
    def where(self) -> str:
        """`3/41`: which of the hits the cursor stands on, and how many lines have one.

        `3/41+` as long as not all are known.
        """
        if self.sought is None:
            return ""
        before = bisect.bisect_right(self.hits, self.cursor)
        return f"{before}/{len(self.hits)}{'+' * self.searching}"

    # How it is done.

    def _search_again(self) -> None:
        """From the first line, with the query as it is."""
        self.hits = array("Q")
        self._work = None
        self._search_on()
        self.refresh()

    def _search_on(self) -> None:
        """The lines that were not there when the search ended."""
        if self._search is not None:
            self._search.cancel()
            self._search = None
        if self.sought is None or not self.is_running:
            return
        line = self._work.line if self._work else 0
        self._work = work = _Work(self.source, self.sought, self.hits, line)
        start, ended = time.thread_time(), False
        while not ended and time.thread_time() - start < 2 * _MOMENT:
            ended = self._step(work)
        self._known()
        if ended:  # what is small is known at once, and nothing flickers
            self._done()
        else:
            self._search = self.aside(partial(self._run, work), "find")

    async def _run(self, work: _Work) -> None:
        told = time.monotonic()
        ended = False
        while not ended:
            await self.breathe()
            ended = self._step(work)
            if self._awaited:
                self._known()
            if time.monotonic() - told > _TOLD:
                told = time.monotonic()
                self._known()
                self.hits_changed()
                self.post_message(self.Found(self))
        self._known()
        self._search = None
        self._done()

    def _step(self, work: _Work) -> bool:
        """Search a piece; whether it was the last, or one that takes too long."""
        try:
            return work.step()
        except TooSlow:
            self._give_up()
            return True

    def _give_up(self) -> None:
        self._pattern = None
        self.problem = "the expression takes too long to match; given up"

    def found_in(self, text: str) -> list[highlight.Mark]:
        """Where the hits are in a text that is drawn."""
        if self._pattern is None:
            return []
        try:
            with at_most(_PATIENCE):
                return highlight.hits(text, self._pattern)
        except TooSlow:
            self._give_up()
            return []

    def _known(self) -> None:
        if self._awaited and (found := self._beyond(self._from, 1, True)) is not None:
            self._land(found)

    def hits_changed(self) -> None:
        """There are more hits than before, or all of them are known; for subclasses."""

    def mark(self, query: Query | None) -> None:
        """Set apart what a search elsewhere found, where nothing is searched for here."""
        if self.sought is None:
            self._pattern = query.compiled() if query is not None else None
            self.refresh()

    def _done(self) -> None:
        self.hits_changed()
        if self._awaited:
            self._land(self.hits[0] if self.hits else self._from)
        self.refresh()
        self.post_message(self.Found(self))

    def _land(self, line: int) -> None:
        self._awaited = False
        self._landed = line
        self.land_on(line)

    def land_on(self, line: int) -> None:
        """Put the cursor on a line that has a hit; for subclasses that may not know it yet."""
        self.cursor = line

    def _beyond(self, line: int, direction: int, here: bool) -> int | None:
        if direction > 0:
            at = (bisect.bisect_left if here else bisect.bisect_right)(self.hits, line)
            return self.hits[at] if at < len(self.hits) else None
        at = (bisect.bisect_right if here else bisect.bisect_left)(self.hits, line)
        return self.hits[at - 1] if at else None


class _Work:
    """A search, piece by piece."""

    def __init__(self, source: Lines, query: Query, hits: array[int], line: int) -> None:
        self._find = finder(query)
        self._source = source
        self._hits = hits
        self.line = line
        """Up to which all is searched."""
        self._size = _FIRST
        self._pieces = source.pieces(line, lambda: self._size)

    def step(self) -> bool:
        """Search a piece; whether it was the last.

        Raises:
          TooSlow: however small the piece.
        """
        start = time.thread_time()  # on a busy machine, more is no more work
        data = next(self._pieces, None)
        if data is None:
            return True
        try:
            with at_most(_PATIENCE):
                self._search(data)
        except TooSlow:
            if self._size == _SMALLEST:
                raise
            self._size = max(self._size // 16, _SMALLEST)
            del self._hits[bisect.bisect_left(self._hits, self.line) :]
            self._pieces = self._source.pieces(self.line, lambda: self._size)
            return False
        took = time.thread_time() - start
        factor = 2 if took < _MOMENT / 2 else 1 if took < 2 * _MOMENT else 0.25
        self._size = int(min(max(self._size * factor, _SMALLEST), _LARGEST))
        return False

    def _search(self, data: bytes) -> None:
        hits, line, position = self._hits, self.line, 0
        for begin, _ in self._find(data, len(data)):
            line += newlines(data, begin, position)
            position = begin
            if not hits or hits[-1] != line:  # a line that is huge comes in parts
                hits.append(line)
        self.line = line + newlines(data, len(data), position)
