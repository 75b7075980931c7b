"""List of kernels: rows and filter.

Kernels are listed by folder name. Folders are read only for the rows on the screen; once a filter
needs them, all folders are read step by step. Rows are small and stay in memory; the
documents behind them do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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


class KernelList:
    """Kernels of a browser in the order in which they are listed.

    Attributes:
      shown: kernels that pass the filter, in order.
      targets: targets of the kernels that have been read, in order.
      widest: number of characters of the longest label.
      wanted: current filter.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._rows: dict[Entry, KernelRow] = {}
        self.targets: dict[str, None] = {}
        self.wanted = KernelFilter()
        self.shown: list[Entry] = []
        self.reload()

    def reload(self) -> None:
        """Update from the browser's list of kernels."""
        entries = self._browser.entries
        named = Counter((entry.dump, kernel_name(entry.name)) for entry in entries)
        self._clashing = {name for (_, name), count in named.items() if count > 1}
        self.widest = max((len(self.label(entry)) for entry in entries), default=0)
        if self._rows:
            known = {*entries}
            self._rows = {entry: row for entry, row in self._rows.items() if entry in known}
        self.arrange()

    def arrange(self) -> None:
        """Filter, based on the rows read so far."""
        entries = self._browser.entries
        self.shown = list(filter(self._takes, entries)) if self.wanted.text else [*entries]

    def _takes(self, entry: Entry) -> bool:
        wanted, row = self.wanted, self._rows.get(entry)
        if not wanted.takes_name(entry.name):
            return False
        return not wanted.reads or (row is not None and wanted.takes_row(row))

    def label(self, entry: Entry) -> str:
        """Return the name of a kernel, with its digest if another kernel has the same name."""
        name = kernel_name(entry.name)
        return entry.name if name in self._clashing else name

    @property
    def total(self) -> int:
        """Number of kernels."""
        return len(self._browser.entries)

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
        for entry in [*self.shown, *self._browser.entries]:
            if stopped():
                return
            if entry not in self._rows:
                self.learn(entry)
                throttle.rest()
