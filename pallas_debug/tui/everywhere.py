"""A search over many texts: over the passes of a kernel, or over all kernels. No textual here.

It runs in a thread, may be stopped at any time, and what it found stays: `n` and `N` go on from
hit to hit after the list of them is closed. All hits are counted; so many are listed as one may
look at next, and more as one comes near the last.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pallas_debug.errors import PatternError
from pallas_debug.ir.patterns import Query
from pallas_debug.store import StoredText
from pallas_debug.tui.model import Browser, Entry, Step
from pallas_debug.tui.pace import Pace

if TYPE_CHECKING:
    from pallas_debug.ir.search import Hit

AHEAD = 1000
"""Hits that are listed at first, and further ones at a time."""

Scope = Literal["kernel", "all"]

Run = Callable[[Callable[[], bool]], None]
"""Searches until it is done, or what it is given says that it is to stop."""


class Found(NamedTuple):
    """A line with a hit. A tuple, as there may be thousands.

    Attributes:
      target: its folder's name; None where the text is the same for every one.
      stage: `jaxpr`, `13-infer-vector-layout`.
      hit: where in the text.
    """

    entry: Entry
    target: str | None
    stage: str
    hit: Hit

    @property
    def path(self) -> Path:
        return self.hit.path

    @property
    def line(self) -> int:
        """Counted from 0."""
        return self.hit.line - 1

    @property
    def parts(self) -> tuple[str, str, str]:
        """The line before the match, the match, and the line behind it."""
        return self.hit.parts


class _Unlisted(NamedTuple):
    """A text with hits that are not listed: those after a line."""

    entry: Entry
    text: StoredText
    line: int = 0


class Search:
    """One search, the latest; a new one takes the place of that before.

    Attributes:
      hits: those that are listed, in the order of kernels, targets and stages.
      count: of all hits.
      texts: how many texts have one.
      searched: how many texts were searched.
      problems: texts that could not be read.
      at: the hit that one is at; -1 before the first.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._token: object = None
        self._listing: object = None
        self._lock = threading.Lock()
        self._query = Query(text="")
        self.text = ""
        self.scope: Scope = "all"
        self.entry: Entry | None = None
        self.clear()

    def clear(self) -> None:
        """Forget what was found, and stop whatever runs."""
        self._token = self._listing = None
        self._unlisted: deque[_Unlisted] = deque()
        self.hits: list[Found] = []
        self.count = self.texts = self.searched = self.problems = 0
        self.at = -1
        self.text = ""
        self.running = False
        self.stopped = False

    @property
    def active(self) -> bool:
        """Whether there is something that was looked for."""
        return bool(self.text)

    def stop(self) -> bool:
        """Stop where it is; whether it ran."""
        ran = self.running
        self._token = None
        self.running = False
        self.stopped = self.stopped or ran
        return ran

    def peel(self) -> bool:
        """Stop it, and when it runs no more, forget it; whether there was anything to do."""
        if self.stop():
            return True
        if not self.active:
            return False
        self.clear()
        return True

    def begin(self, text: str, scope: Scope, entry: Entry | None) -> Run:
        """Take over what is looked for; what is returned looks for it, in a worker.

        Args:
          text: a regular expression, or what is looked for as it stands where it is none.
          entry: the kernel whose passes are searched, or that all kernels are searched from.
        """
        self.clear()
        self.text, self.scope, self.entry = text, scope, entry
        if not text:
            return lambda stopped: None
        query = self._query = query_of(text)
        token = self._token = object()
        self.running = True
        return lambda stopped: self._run(
            query, entry, lambda: stopped() or self._token is not token
        )

    def _run(self, query: Query, entry: Entry | None, stopped: Callable[[], bool]) -> None:
        from pallas_debug.ir import search

        pace = Pace()
        known: dict[Path, tuple[Entry, StoredText]] = {}
        last: Path | None = None
        texts = self._texts(entry, stopped)

        def listed() -> Iterator[Path]:
            while len(self.hits) < AHEAD and (found := next(texts, None)):
                known.clear()  # a search asks for a text when it is done with that before
                known[found[1].path] = found
                yield found[1].path

        found: list[Hit] = []  # of a chunk: the lock is taken once for all
        for event in search.search(listed(), query, opened=lambda path: known[path][1].open()):
            if isinstance(event, search.Hit):
                found.append(event)
                continue
            with self._lock:
                if stopped():
                    return
                if found:
                    self._take(found, *known[event.path], event.path is not last)
                    found, last = [], event.path
                if event.done:
                    self.searched += 1
                    self.problems += event.problem is not None
            pace.rest()
        # There are enough to look at: to count the others is quicker than to find them.
        known.clear()

        def counted() -> Iterator[Path]:
            for entry, text in texts:
                known[text.path] = entry, text
                yield text.path

        for path, count, problem in search.count(
            counted(), query, opened=lambda path: known[path][1].open()
        ):
            with self._lock:
                if stopped():
                    return
                here = known.pop(path)
                if count:
                    self._unlisted.append(_Unlisted(*here))
                self.count += count
                self.texts += count > 0
                self.searched += 1
                self.problems += problem is not None
            pace.rest()
        with self._lock:
            if not stopped():
                self.running = False

    def _take(self, hits: list[Hit], entry: Entry, text: StoredText, is_new: bool) -> None:
        self.count += len(hits)
        self.texts += is_new
        kept = hits[: max(AHEAD - len(self.hits), 0)]
        self._list(kept, entry, text)
        if len(kept) < len(hits) and not self._unlisted:
            self._unlisted.append(_Unlisted(entry, text, self.hits[-1].hit.line))

    def _list(self, hits: list[Hit], entry: Entry, text: StoredText) -> None:
        self.hits += [Found(entry, text.target, text.stage, hit) for hit in hits]

    def near_end(self) -> Run | None:
        """What lists more hits, in a worker, if one comes near the last one and there are more."""
        if self._listing or not self._unlisted or self.at < len(self.hits) - AHEAD // 2:
            return None
        token = self._listing = object()
        unlisted = self._unlisted

        def run(stopped: Callable[[], bool]) -> None:
            try:
                self._list_more(unlisted, lambda: stopped() or self._listing is not token)
            finally:
                if self._listing is token:
                    self._listing = None

        return run

    def _list_more(self, unlisted: deque[_Unlisted], stopped: Callable[[], bool]) -> None:
        from pallas_debug.ir import search

        pace = Pace()
        wanted = len(self.hits) + AHEAD
        while unlisted and len(self.hits) < wanted:
            entry, text, line = unlisted[0]
            found: list[Hit] = []
            for event in search.search([text.path], self._query, opened=_opener(text)):
                if isinstance(event, search.Hit):
                    if event.line > line:
                        found.append(event)
                    continue
                with self._lock:
                    if stopped():
                        return
                    kept = found[: wanted - len(self.hits)]
                    self._list(kept, entry, text)
                    if len(kept) < len(found):
                        unlisted[0] = _Unlisted(entry, text, self.hits[-1].hit.line)
                        break
                    found = []
                    if event.done:
                        unlisted.popleft()
                pace.rest()

    def _texts(
        self, entry: Entry | None, stopped: Callable[[], bool]
    ) -> Iterator[tuple[Entry, StoredText]]:
        """What is searched: of the kernel at hand, or of all from it on and round."""
        entries = [entry] if entry is not None else []
        if self.scope == "all":
            listed = self._browser.entries
            at = listed.index(entry) if entry in listed else 0
            entries = [*listed[at:], *listed[:at]]
        for of in entries:
            if stopped():
                return
            for text in self._browser.texts(of):
                yield of, text

    # What is said of it.

    @property
    def said(self) -> str:
        """`3/41 in 12 texts, 1,204 searched`."""
        if not self.active:
            return ""
        at = f"{self.at + 1:,}/" if self.at >= 0 else ""
        state = ", searching" if self.running else ", stopped" if self.stopped else ""
        listed = len(self.hits)
        kept = f", the first {listed:,} listed" if self.count > listed else ""
        broken = f", {self.problems:,} cannot be read" if self.problems else ""
        texts = "text" if self.texts == 1 else "texts"
        return (
            f"{at}{self.count:,} in {self.texts:,} {texts}, {self.searched:,} searched"
            f"{broken}{kept}{state}"
        )

    def next(self, direction: int) -> Found | None:
        """The next hit, or the previous one, round the ends; None while the next is not listed."""
        if not self.hits or (direction > 0 and self.at == len(self.hits) - 1 and self._unlisted):
            return None
        if self.at < 0:
            self.at = 0 if direction > 0 else len(self.hits) - 1
        else:
            self.at = (self.at + direction) % len(self.hits)
        return self.hits[self.at]


def query_of(text: str) -> Query:
    """What was typed as a regular expression, or as it stands while it is none; smart case."""
    query = Query(text=text, ignore_case=None)
    try:
        query.compiled()
    except PatternError:
        return Query(text=text, literal=True, ignore_case=None)
    return query


def step_of(browser: Browser, found: Found) -> tuple[str | None, Step | None]:
    """The target and the step that a hit's text belongs to."""
    compilations = browser.stored(found.entry).compilations
    names = (c.target for c in compilations if found.target in (c.folder.name, c.target))
    target = next(names, None)
    for step in browser.steps(found.entry, target):
        file = step.pass_.file if step.pass_ is not None else None
        if step.file == found.path or (file and Path(file).name == found.path.name):
            return target, step
        if step.stage == found.stage:
            return target, step
    return target, None


def _opener(text: StoredText) -> Callable[[Path], int]:
    return lambda _: text.open()
