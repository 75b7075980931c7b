"""List of kernels: rows, filter and order; paired if two directories are browsed.

Kernels are listed by folder name. Folders are read only for the rows on the screen; once a filter
or order needs them, all folders are read step by step. Rows are small and stay in memory; the
documents behind them do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pallas_debug.store import StoredCompilation, StoredKernel
from pallas_debug.tui.model import Throttle
from pallas_debug.tui.model.browser import Browser, Entry, kernel_name

OK, FAILED, UNKNOWN = "✓", "✗", "?"
"""Marks of a target: compiled, failed, unreadable."""

Status = Literal["ok", "failed", "unread"]
_STATUSES: dict[str, Status] = {OK: "ok", FAILED: "failed", UNKNOWN: "unread"}


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRow:
    """Row of a kernel in the list.

    Attributes:
      targets: targets with their marks.
      failing: stage and pass of the first target that failed.
      problem: whether one of its documents cannot be read.
    """

    name: str
    targets: tuple[tuple[str, str], ...]
    failing: str = ""
    problem: bool = False

    @property
    def mark(self) -> str:
        """Worst mark of the kernel's targets."""
        marks = {mark for _, mark in self.targets}
        if FAILED in marks:
            return FAILED
        return UNKNOWN if self.problem or UNKNOWN in marks or not marks else OK

    @property
    def status(self) -> Status:
        return _STATUSES[self.mark]


def row_of(stored: StoredKernel) -> KernelRow:
    """Return the row of a kernel."""
    return KernelRow(
        name=stored.name,
        targets=tuple((c.target, _mark(c)) for c in stored.compilations),
        failing=next(filter(None, map(_failing, stored.compilations)), ""),
        problem=stored.problem is not None,
    )


def _mark(stored: StoredCompilation) -> str:
    if stored.compilation is None:
        return UNKNOWN
    return OK if stored.compilation.ok else FAILED


def _failing(stored: StoredCompilation) -> str:
    """Return the stage and pass that failed, such as `compile infer-vector-layout`."""
    compilation = stored.compilation
    failure = compilation.failure if compilation else None
    if compilation is None or failure is None:
        return ""
    failed = next((p.name for p in compilation.passes if p.failed), failure.last_pass)
    return f"{failure.stage} {failed}" if failed else failure.stage


@dataclass(frozen=True, kw_only=True)
class KernelFilter:
    """Filter for kernels; all conditions must hold.

    Attributes:
      text: the filter as typed.
      words: parts of the kernel's name, in lower case.
      target: part of a target's name.
      status: prefix of the status for such a target.
    """

    text: str = ""
    words: tuple[str, ...] = ()
    target: str | None = None
    status: str | None = None

    @classmethod
    def of(cls, text: str) -> KernelFilter:
        """Parse `soft target:v5e status:failed`; other words are parts of the name."""
        pairs: dict[str, str] = {}
        words = []
        for word in text.lower().split():
            key, colon, value = word.partition(":")
            if colon and key in ("target", "status"):
                if value:
                    pairs[key] = value
            else:
                words.append(word)
        return cls(text=text.strip(), words=tuple(words), **pairs)

    @property
    def reads(self) -> bool:
        """True if the filter needs the rows of kernels."""
        return self.target is not None or self.status is not None

    def takes_name(self, name: str) -> bool:
        low = name.lower()
        return all(word in low for word in self.words)

    def takes_row(self, row: KernelRow) -> bool:
        """Return whether a matching target has the wanted status."""
        if not self.reads:
            return True
        statuses = [
            _STATUSES[mark]
            for name, mark in row.targets
            if self.target is None or self.target in name.lower()
        ]
        if self.status is None:
            return bool(statuses)
        if not row.targets and self.target is None:
            statuses = [row.status]
        return any(status.startswith(self.status) for status in statuses)


class KernelLine(NamedTuple):
    """Line of the list: a kernel from one directory or from both."""

    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return self.entries[0].name

    @property
    def dumps(self) -> str:
        """Directories that contain the kernel: `A`, `B` or `AB`."""
        return "".join("AB"[entry.dump] for entry in self.entries)


class KernelList:
    """Kernels of a browser in the order in which they are listed.

    Attributes:
      total: number of kernels; those in both directories count twice.
      shown: kernels that pass the filter, in order.
      shared: number of kernels in `A`, in `B` and in `AB`, for two directories.
      targets: targets of the kernels that have been read, in order.
      widest: number of characters of the longest label.
      wanted: current filter.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._rows: dict[Entry, KernelRow] = {}
        self.targets: dict[str, None] = {}
        self.wanted = KernelFilter()
        self.shown: list[KernelLine] = []
        self.shared: Counter[str] = Counter()
        self.reload()

    def reload(self) -> None:
        """Update from the browser's list of kernels."""
        self.lines = list(_paired(self._browser))
        self.total = len(self._browser.entries)
        named = Counter(kernel_name(line.name) for line in self.lines)
        self._clashing = {name for name, count in named.items() if count > 1}
        self.widest = max((len(self.label(line)) for line in self.lines), default=0)
        self._names: list[str] = []
        if len(self._browser.roots) > 1:
            self.shared = Counter(line.dumps for line in self.lines)
        if self._rows:
            known = {entry for line in self.lines for entry in line.entries}
            self._rows = {entry: row for entry, row in self._rows.items() if entry in known}
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort, based on the rows read so far."""
        wanted = self.wanted
        self.shown = [*self.lines]
        if wanted.words:
            self._names = self._names or [
                " ".join(e.name for e in line.entries).lower() for line in self.lines
            ]
            named = list(zip(self.lines, self._names, strict=True))
            for word in wanted.words:
                named = [pair for pair in named if word in pair[1]]
            self.shown = [line for line, _ in named]
        if wanted.text:
            takes = self._takes()
            self.shown = [line for line in self.shown if any(map(takes, line.entries))]

    def _takes(self) -> Callable[[Entry], bool]:
        """Return the filter as a function that caches results, as many rows are equal."""
        wanted, rows = self.wanted, self._rows
        cache: dict[tuple[object, bool], bool] = {}

        def takes(entry: Entry) -> bool:
            # With two directories, the words may match two different names.
            if len(wanted.words) > 1 and not wanted.takes_name(entry.name):
                return False
            if not wanted.reads:
                return True
            row = rows.get(entry)
            if row is None:
                return False
            key = row.targets, row.problem
            if key not in cache:
                cache[key] = wanted.takes_row(row)
            return cache[key]

        return takes

    def label(self, line: KernelLine) -> str:
        """Return the name of a kernel, with its digest if another kernel has the same name."""
        name = kernel_name(line.name)
        return line.name if name in self._clashing else name

    # Rows.

    def known(self, entry: Entry) -> KernelRow | None:
        """Return the row of a kernel if it has been read."""
        return self._rows.get(entry)

    def learn(self, entry: Entry) -> KernelRow:
        """Return the row of a kernel; reads it if necessary."""
        row = self._rows.get(entry)
        if row is None:
            row = self._rows[entry] = row_of(self._browser.glance(entry))
            self.targets.update(dict.fromkeys(name for name, _ in row.targets))
        return row

    def learn_again(self, entry: Entry) -> None:
        """Read the row of a kernel again, if it has been read."""
        if self._rows.pop(entry, None) is not None:
            self.learn(entry)

    @property
    def read(self) -> int:
        """Number of rows read."""
        return len(self._rows)

    @property
    def whole(self) -> bool:
        """True if all rows have been read."""
        return self.read >= self.total

    @property
    def failures(self) -> int:
        """Number of kernels known to have failed."""
        return sum(row.mark == FAILED for row in self._rows.values())

    def read_all(self, stopped: Callable[[], bool]) -> None:
        """Read all rows until `stopped()`. Runs in a worker."""
        throttle = Throttle()
        for line in [*self.shown, *self.lines]:
            for entry in line.entries:
                if stopped():
                    return
                if entry not in self._rows:
                    self.learn(entry)
                    throttle.rest()


def _paired(browser: Browser) -> Iterator[KernelLine]:
    """Yield a line for each kernel, and a single line for a pair of counterparts."""
    if len(browser.roots) < 2:
        yield from [KernelLine((entry,)) for entry in browser.entries]
        return
    for entry in browser.entries:
        counterpart = browser.counterpart(entry)
        both = counterpart is not None and browser.counterpart(counterpart) == entry
        if counterpart is None or not both:
            yield KernelLine((entry,))
        elif entry.dump == 0:
            yield KernelLine((entry, counterpart))
