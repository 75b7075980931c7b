"""Search over the texts of all kernels.

The search runs in a worker thread and can be stopped at any time. Hits are kept after their list is
closed. Like an editor's, it ends once `MAX_LISTED` are found.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallas_debug.errors import PatternError
from pallas_debug.ir.patterns import Query
from pallas_debug.store import StoredText
from pallas_debug.tui.model import MAX_LISTED, Throttle
from pallas_debug.tui.model.browser import Browser, Entry, KernelStep

if TYPE_CHECKING:
    from pallas_debug.ir.search import Hit

_NOISE = re.compile(rb" loc\(.*"), re.compile(rb"/\*.*?\*/"), re.compile(rb"%[\w.$-]+")
"""Parts of a line that differ between texts with the same operations.

Several patterns, because `re` skips to the literal text that one begins with.
"""

Job = Callable[[Callable[[], bool]], None]
"""Work for a thread; it stops once the function that it is passed returns True."""


class TextHit(NamedTuple):
    """Line with a hit.

    Attributes:
      target: folder name of the target; None for a text that is the same for all targets.
      stage: name such as `jaxpr` or `13-infer-vector-layout`.
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
        """Line number, from 0."""
        return self.hit.line - 1

    @property
    def parts(self) -> tuple[str, str, str]:
        """Text of the line before the match, the match, and the text after it."""
        return self.hit.parts


@dataclass(kw_only=True, slots=True)
class HitGroup:
    """Texts of a kernel that have the same hits, except for names of values and locations.

    Attributes:
      hits: indices of the listed hits of the first text.
      count: number of hits in each text.
      texts: targets and stages.
    """

    entry: Entry
    hits: range
    count: int
    texts: list[tuple[str | None, str]]


class DumpSearch:
    """The latest search over many texts.

    Attributes:
      hits: listed hits, of the first text of each group.
      groups: in the order of kernels, targets and stages.
      count: number of hits.
      texts: number of texts with a hit.
      searched: number of texts searched.
      problems: number of texts that could not be read.
      full: whether it ended because the list is full.
      at: index of the hit under the cursor; -1 before the first.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Stop the search and drop its hits."""
        self._token: object = None
        self.hits: list[TextHit] = []
        self.groups: list[HitGroup] = []
        self._known: dict[tuple[Entry, bytes], HitGroup] = {}
        self.count = self.texts = self.searched = self.problems = 0
        self.at = -1
        self.text = ""
        self.running = self.stopped = self.full = False

    @property
    def active(self) -> bool:
        """True if something has been searched for."""
        return bool(self.text)

    def stop(self) -> bool:
        """Stop the search; return whether it was running."""
        ran = self.running
        self._token = None
        self.running = False
        self.stopped = self.stopped or ran
        return ran

    def begin(self, text: str, entry: Entry) -> Job:
        """Set what to search for; return the search, to be run in a worker.

        Args:
          text: a regular expression, or literal text if it is not a valid one.
          entry: the kernel to start from.
        """
        self.clear()
        self.text = text
        if not text:
            return lambda stopped: None
        query, _ = query_of(text)
        token = self._token = object()
        self.running = True
        return lambda stopped: self._run(
            query, entry, lambda: stopped() or self._token is not token
        )

    def _run(self, query: Query, first: Entry, stopped: Callable[[], bool]) -> None:
        from pallas_debug.ir import search

        throttle = Throttle()
        known: dict[Path, tuple[Entry, StoredText]] = {}

        def paths() -> Iterator[Path]:
            for entry, text in self._texts(first, stopped):
                known.clear()  # the engine asks for a text once it is done with the previous one
                known[text.path] = entry, text
                yield text.path

        found: list[Hit] = []  # of one text
        taken = 0
        for event in search.search(paths(), query, opened=lambda path: known[path][1].open()):
            if isinstance(event, search.Hit):
                found.append(event)
                continue
            with self._lock:  # taken once per chunk
                if stopped():
                    return
                self.count += len(found) - taken
                taken = len(found)
                self.full = self.count >= MAX_LISTED
                if event.done or self.full:
                    if found:
                        self._take(found, *known[event.path])
                    found, taken = [], 0
                    self.searched += 1
                    self.problems += event.problem is not None
            if self.full:
                break
            throttle.rest()
        with self._lock:
            if not stopped():
                self.running = False

    def _take(self, hits: list[Hit], entry: Entry, text: StoredText) -> None:
        """Add the hits of a text, to the group of another text of the kernel with the same."""
        self.texts += 1
        found = b"\n".join([hit.data for hit in hits])
        for noise in _NOISE:
            found = noise.sub(b"", found)
        key = entry, found
        group = self._known.get(key)
        if group is None:
            kept = hits[: max(MAX_LISTED - len(self.hits), 0)]
            at = range(len(self.hits), len(self.hits) + len(kept))
            self.hits += [TextHit(entry, text.target, text.stage, hit) for hit in kept]
            group = HitGroup(entry=entry, hits=at, count=len(hits), texts=[])
            self._known[key] = group
            if kept:
                self.groups.append(group)
        group.texts.append((text.target, text.stage))

    def _texts(
        self, entry: Entry, stopped: Callable[[], bool]
    ) -> Iterator[tuple[Entry, StoredText]]:
        """Yield the texts of all kernels, starting from one."""
        listed = self._browser.entries
        at = listed.index(entry)
        for of in (*listed[at:], *listed[:at]):
            if stopped():
                return
            for text in self._browser.texts(of):
                yield of, text

    @property
    def status(self) -> str:
        """Status text: `41 in 12 texts, 1,204 searched`."""
        if not self.active:
            return ""
        state = ", searching" if self.running else ", stopped" if self.stopped else ""
        full = f"; ended after {MAX_LISTED:,}" if self.full else ""
        broken = f", {self.problems:,} cannot be read" if self.problems else ""
        texts = "text" if self.texts == 1 else "texts"
        return (
            f"{self.count:,} in {self.texts:,} {texts}, {self.searched:,} searched"
            f"{broken}{full}{state}"
        )


def query_of(text: str) -> tuple[Query, str]:
    """Return a query with smart case, and why it is literal if it is not a regular expression."""
    query = Query(text=text, ignore_case=None)
    try:
        query.compiled()
    except PatternError as error:
        literal = Query(text=text, literal=True, ignore_case=None)
        return literal, f"not a regular expression: {error.reason}; searching for the literal text"
    return query, ""


def step_of(browser: Browser, found: TextHit) -> tuple[str | None, KernelStep | None]:
    """Return the target and step of a hit."""
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
