"""The list of kernels: in pairs where two directories are browsed, filtered, in order.

Imports no textual. Ten thousand kernels are listed by the names of their folders; what stands in
the folders is read for the rows on the screen, and of the others in steps, once something asks
for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from pallas_debug.tui.model import Browser, Entry
from pallas_debug.tui.pace import Pace
from pallas_debug.tui.rows import Filter, Row, row_of


class Line(NamedTuple):
    """A kernel in the list: as one directory has it, or as both do.

    Attributes:
      entries: the first one is that which is shown, unless the other is asked for.
    """

    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return self.entries[0].name

    @property
    def dumps(self) -> str:
        """`A`, `B` or `AB`: the directories that have it."""
        return "".join("AB"[entry.dump] for entry in self.entries)


class KernelList:
    """The kernels of a browser in the order in which they are listed.

    Attributes:
      total: how many kernels there are, those of both directories counted twice.
      shown: what passes the filter, in order.
      shared: of two directories, how many kernels are in `A`, in `B` and in `AB`.
      wanted: the filter.
      failed_first: whether what failed stands before the others.
      tests: for each kernel's folder the tests that used it; whoever reads runs fills it.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._rows: dict[Entry, Row] = {}
        self._failed: set[Entry] = set()
        self.wanted = Filter()
        self.failed_first = False
        self.tests: Mapping[str, Collection[str]] = {}
        self.lines: list[Line] = []
        self.shown: list[Line] = []
        self.shared: Counter[str] = Counter()
        self._names: list[str] = []
        self.reload()

    def reload(self) -> None:
        """Take over what the browser lists now."""
        self.lines = list(_paired(self._browser))
        self.total = len(self._browser.entries)
        self._names = [" ".join(e.name for e in line.entries).lower() for line in self.lines]
        if len(self._browser.roots) > 1:
            self.shared = Counter(line.dumps for line in self.lines)
        if self._rows:
            known = {entry for line in self.lines for entry in line.entries}
            self._rows = {entry: row for entry, row in self._rows.items() if entry in known}
            self._failed &= known
        self.arrange()

    def arrange(self) -> None:
        """Filter and order the kernels by what is known of them now."""
        wanted = self.wanted
        self.shown = [*self.lines]
        if wanted.words:
            named = list(zip(self.lines, self._names, strict=True))
            for word in wanted.words:
                named = [pair for pair in named if word in pair[1]]
            self.shown = [line for line, _ in named]
        if wanted.text:
            takes = self._takes()
            self.shown = [line for line in self.shown if any(map(takes, line.entries))]
        if self.failed_first:
            self.shown.sort(key=lambda line: not self.failed(line))

    def _takes(self) -> Callable[[Entry], bool]:
        """Whether the filter takes a kernel: a function, as there are many and they are alike."""
        wanted, rows = self.wanted, self._rows
        known: dict[tuple[object, bool], bool] = {}

        def takes(entry: Entry) -> bool:
            # Of two directories' names each may hold some of the words, and neither all.
            if len(wanted.words) > 1 and not wanted.takes_name(entry.name):
                return False
            if wanted.test is not None:
                tests = self.tests.get(entry.name)
                if not tests or not wanted.takes_tests(tests):
                    return False
            if not wanted.reads:
                return True
            row = rows.get(entry)
            if row is None:
                return False
            key = row.targets, row.problem
            if key not in known:
                known[key] = wanted.takes_row(row)
            return known[key]

        return takes

    # What is known of each.

    def known(self, entry: Entry) -> Row | None:
        """The row of a kernel, if it was read."""
        return self._rows.get(entry)

    def learn(self, entry: Entry) -> Row:
        """The row of a kernel, read if it was not."""
        row = self._rows.get(entry)
        if row is None:
            row = self._rows[entry] = row_of(self._browser.glance(entry))
            if row.failed:
                self._failed.add(entry)
        return row

    def forget(self, entry: Entry | None = None) -> None:
        """Read the row of a kernel, or all, again when it is asked for."""
        if entry is None:
            self._rows.clear()
            self._failed.clear()
        else:
            self._rows.pop(entry, None)
            self._failed.discard(entry)

    def failed(self, line: Line) -> bool:
        """Whether a kernel is known to have failed, in either directory."""
        return not self._failed.isdisjoint(line.entries)

    @property
    def read(self) -> int:
        """How many kernels' rows are known."""
        return len(self._rows)

    @property
    def whole(self) -> bool:
        """Whether all are known."""
        return self.read >= self.total

    @property
    def failures(self) -> int:
        """How many are known to have failed."""
        return len(self._failed)

    def read_all(self, stopped: Callable[[], bool]) -> None:
        """Read the rows that are not known, in slices, until told to stop. For a worker."""
        pace = Pace()
        for line in [*self.shown, *self.lines]:
            for entry in line.entries:
                if stopped():
                    return
                if entry not in self._rows:
                    self.learn(entry)
                    pace.rest()

    def find_failed(self, start: int, direction: int, stopped: Callable[[], bool]) -> int | None:
        """Where the next kernel that failed is listed, or the previous one; round the end.

        Rows on the way are read. For a worker.
        """
        pace = Pace()
        shown = self.shown
        for step in range(1, len(shown) + 1):
            at = (start + direction * step) % len(shown)
            if stopped():
                return None
            for entry in shown[at].entries:
                if entry not in self._rows:
                    self.learn(entry)
                    pace.rest()
            if self.failed(shown[at]):
                return at
        return None


def _paired(browser: Browser) -> Iterator[Line]:
    """A line for each kernel, and one for two that are each other's twins."""
    if len(browser.roots) < 2:
        yield from (Line((entry,)) for entry in browser.entries)
        return
    for entry in browser.entries:
        twin = browser.twin(entry)
        both = twin is not None and browser.twin(twin) == entry
        if twin is None or not both:
            yield Line((entry,))
        elif entry.dump == 0:
            yield Line((entry, twin))
