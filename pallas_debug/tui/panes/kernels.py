"""List of kernels, with the result, name and targets of each."""

from __future__ import annotations

import sys
import time

from textual import work
from textual.worker import get_current_worker

from pallas_debug.tui.model.browser import Browser, Entry
from pallas_debug.tui.model.kernels import (
    FAILED,
    OK,
    UNKNOWN,
    KernelList,
    KernelRow,
)
from pallas_debug.tui.model.runs import Runs
from pallas_debug.tui.widgets.cells import Cells, fitted
from pallas_debug.tui.widgets.lineview import ViewMessage
from pallas_debug.tui.widgets.lists import ListPane

FEW = 500
"""Maximum number of kernels whose rows are all read at the start, to count failures."""

_MIN_NAME = 10
"""Minimum number of cells for a name, even if its targets then do not fit."""

FILTER_FAILED = "failed"
"""Word of the filter for kernels that failed."""

TICK = 0.5
"""Seconds between progress reports."""

SWITCH_INTERVAL = 0.001
"""Maximum seconds for which a busy worker may block the UI thread's use of the interpreter."""

FLAG = "⚑"
"""Mark of a kernel with findings."""

_STYLES = {OK: "text-success", FAILED: "bold text-error", UNKNOWN: "text-warning"}


class KernelPane(ListPane):
    """Pane with the kernels: mark, name and targets of each, and more if there is room."""

    class RunsRead(ViewMessage):
        """Message: the records of runs were read."""

    def __init__(self, browser: Browser, *, id: str) -> None:
        super().__init__(id=id)
        self._browser = browser
        self.list = KernelList(browser)
        self.runs = Runs(browser)
        self.shown = browser.entries
        self.filter_text = ""
        self._unread: list[Entry] = []

    def on_mount(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        if self.count <= FEW:
            self.call_after_refresh(self._read_rows)
        self.call_after_refresh(self._read_runs)

    # The list and its cursor.

    @property
    def count(self) -> int:
        return len(self.shown)

    @property
    def current(self) -> Entry | None:
        """Kernel under the cursor."""
        return self.shown[self.cursor] if self.count else None

    def select(self, entry: Entry) -> None:
        """Move the cursor to a kernel, without a message: the caller shows the kernel."""
        if entry not in self.shown:
            self.filter("")
        self.changed(keep=self.shown.index(entry))

    # Filter.

    def filter(self, text: str) -> None:
        """Show only kernels with all of these words; `failed` is one of those that failed."""
        self.filter_text = text.strip()
        if FILTER_FAILED in self.filter_text.split() and not self.list.whole:
            self._read_rows()
        self._arrange()

    def _arrange(self) -> None:
        before, words = self.current, self.filter_text.lower().split()
        entries = self._browser.entries
        self.shown = [e for e in entries if self._has(e, words)] if words else entries
        self.changed(keep=self.shown.index(before) if before in self.shown else 0)
        if self.current != before:
            self.post_message(self.Moved(self))
        parts = []
        if words:
            parts.append(f"{self.count:,}/{len(entries):,} {self.filter_text}")
            parts += ["reading"] * (FILTER_FAILED in words and not self.list.whole)
        elif self.list.failures:
            parts.append(f"{self.list.failures:,} failed")
        self.note = "  ".join(parts)

    def _has(self, entry: Entry, words: list[str]) -> bool:
        row, name = self.list.known(entry), entry.name.lower()
        is_failed = row is not None and row.mark == FAILED
        return all(word in name or (word == FILTER_FAILED and is_failed) for word in words)

    # Reading in the background.

    @work(thread=True, exclusive=True, group="rows")
    def _read_rows(self) -> None:
        """Read the rows of all kernels, to find the failures."""
        worker = get_current_worker()
        reported = time.monotonic()

        def stopped() -> bool:
            nonlocal reported
            if time.monotonic() - reported > TICK and not worker.is_cancelled:
                reported = time.monotonic()
                self.call_later(self._arrange)
            return worker.is_cancelled

        self.list.read_all(stopped)
        self.call_later(self._arrange)

    @work(thread=True, exclusive=True, group="runs")
    def _read_runs(self) -> None:
        worker = get_current_worker()
        self.runs.read(lambda: worker.is_cancelled)
        self.call_later(self.refresh)
        self.post_message(self.RunsRead(self))

    @work(thread=True, group="screen")
    def _read_unread(self) -> None:
        """Read the rows that were drawn before they had been read."""
        wanted, self._unread = self._unread, []
        for entry in wanted:
            self.list.learn(entry)
        self.call_later(self.refresh)

    # Drawing.

    def _row(self, entry: Entry) -> KernelRow | None:
        """Return the row of a kernel, or have it read."""
        row = self.list.known(entry)
        if row is None and entry not in self._unread:
            if not self._unread:
                self.call_later(self._read_unread)
            self._unread.append(entry)
        return row

    def cells(self, line: int) -> Cells:
        entry = self.shown[line]
        row = self._row(entry)
        mark = row.mark if row else "…"
        before: Cells = [(f"{mark} ", _STYLES.get(mark, "text-muted"))]
        if len(self._browser.roots) > 1:
            before.insert(0, ("AB"[entry.dump] + " ", "text-muted"))
        after: Cells = []
        if self.runs.flagged:
            flags = self.runs.flags(entry)
            after.append((f" {FLAG}{flags:<2}" if flags else "    ", "bold text-warning"))
        after.append((" ", ""))
        marks = dict(row.targets) if row else {}
        for name in self.list.targets:  # a column for each
            found = marks.get(name, "")
            text = f" {found}{name}" if found else " " * (len(name) + 2)
            after.append((text, _STYLES.get(found, "")))
        failing = row.failing if row else ""
        room = self.columns - sum(len(text) for text, _ in (*before, *after))
        name = self.list.label(entry)
        if not self.panned:  # keep the targets visible, unless panned
            name = fitted(name, max(min(self.list.widest, room), _MIN_NAME))
        room -= len(name)
        more: Cells = [(f" {failing}"[:room], "bold text-error")] if room > _MIN_NAME else []
        return [*before, (name, ""), *after, *more]
