"""Rows of the list of kernels.

Kernels are listed by folder name. Folders are read only for the rows on the screen, and of a small
dump all in the background. Rows are small and stay in memory; the documents behind them do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pallas_debug.store import StoredCompilation, StoredKernel
from pallas_debug.tui.model import Throttle
from pallas_debug.tui.model.browser import Browser, Entry, kernel_name

OK, FAILED, UNKNOWN = "✓", "✗", "?"
"""Marks of a target: compiled, failed, unreadable."""


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


class KernelList:
    """Rows and labels of the kernels of a browser.

    Attributes:
      targets: targets of the kernels that have been read, in order.
      widest: number of characters of the longest label.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._rows: dict[Entry, KernelRow] = {}
        self.targets: dict[str, None] = {}
        named = Counter((entry.dump, kernel_name(entry.name)) for entry in browser.entries)
        self._clashing = {name for (_, name), count in named.items() if count > 1}
        self.widest = max((len(self.label(entry)) for entry in browser.entries), default=0)

    def label(self, entry: Entry) -> str:
        """Return the name of a kernel, with its digest if another kernel has the same name."""
        name = kernel_name(entry.name)
        return entry.name if name in self._clashing else name

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

    @property
    def whole(self) -> bool:
        """True if all rows have been read."""
        return len(self._rows) >= len(self._browser.entries)

    @property
    def failures(self) -> int:
        """Number of kernels known to have failed."""
        return sum(row.mark == FAILED for row in self._rows.values())

    def read_all(self, stopped: Callable[[], bool]) -> None:
        """Read all rows until `stopped()`. Runs in a worker."""
        throttle = Throttle()
        for entry in self._browser.entries:
            if stopped():
                return
            if entry not in self._rows:
                self.learn(entry)
                throttle.rest()
