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
    KernelFilter,
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

TICK = 0.2
"""Seconds between progress reports."""

SWITCH_INTERVAL = 0.001
"""Maximum seconds for which a busy worker may block the UI thread's use of the interpreter."""

FLAG = "⚑"
"""Mark of a kernel with findings."""

_STYLES = {OK: "text-success", FAILED: "bold text-error", UNKNOWN: "text-warning"}


class KernelPane(ListPane):
    """Pane with the kernels: mark, name and targets of each, and more if there is room."""

    filter_hint = "part of the name, target:v5e, status:failed"

    class RunsRead(ViewMessage):
        """Message: the records of runs were read."""

    def __init__(self, browser: Browser, *, id: str) -> None:
        super().__init__(id=id)
        self._browser = browser
        self.list = KernelList(browser)
        self.runs = Runs(browser)
        self._unread: list[Entry] = []
        self._reading = False

    def on_mount(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        if self.list.total <= FEW:
            self.call_after_refresh(self.read_all)
        self.call_after_refresh(self._read_runs)
        self._update_note()

    def on_resize(self) -> None:
        super().on_resize()
        self._update_note()

    # The list and its cursor.

    @property
    def count(self) -> int:
        return len(self.list.shown)

    @property
    def current(self) -> Entry | None:
        """Kernel under the cursor."""
        return self.list.shown[self.cursor] if self.count else None

    def select(self, entry: Entry) -> bool:
        """Move the cursor to a kernel, and remove a filter that hides it.

        Does not post a message: the caller shows the kernel. Returns whether it is in the list.
        """
        listed = self.list
        if entry not in listed.shown:
            listed.wanted = KernelFilter()
            listed.arrange()
            self._update_note()
        if entry not in listed.shown:
            return False
        self.changed(keep=listed.shown.index(entry))
        return True

    def reload(self) -> None:
        """Update from the browser's list of kernels."""
        before = self.current
        self.list.reload()
        self._show(before)
        if self.runs.stale():
            self.runs.forget()
            self._read_runs()

    def rearrange(self) -> None:
        """Filter again; the cursor stays on its kernel."""
        before = self.current
        self.list.arrange()
        self._show(before)

    def _show(self, before: Entry | None) -> None:
        shown = self.list.shown
        keep = self.cursor if before is not None else 0
        if before not in shown[keep : keep + 1] and before in shown:
            keep = shown.index(before)
        self._update_note()
        self.changed(keep=keep)
        if self.current != before:
            self.post_message(self.Moved(self))

    # Filter.

    @property
    def filter_text(self) -> str:
        return self.list.wanted.text

    def filter(self, text: str) -> None:
        self.list.wanted = KernelFilter.of(text)
        if self.list.wanted.reads:
            self.read_all()
        self.rearrange()

    # Reading in the background.

    def read_all(self) -> None:
        """Read the rows of all kernels."""
        if not self._reading and not self.list.whole:
            self._reading = True
            self._read_rows()
        self._update_note()  # all may have been read in order to be drawn

    @work(thread=True, group="rows")
    def _read_rows(self) -> None:
        worker = get_current_worker()
        reported = time.monotonic()

        def stopped() -> bool:
            nonlocal reported
            if time.monotonic() - reported > TICK and not worker.is_cancelled:
                reported = time.monotonic()
                self.call_later(self._rows_read)
            return worker.is_cancelled

        self.list.read_all(stopped)
        if not worker.is_cancelled:
            self.call_later(self._all_rows_read)

    def _rows_read(self) -> None:
        if self.list.wanted.reads:
            self.rearrange()
        self._update_note()

    def _all_rows_read(self) -> None:
        self._reading = False
        self._rows_read()
        self.refresh()

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

    def _update_note(self) -> None:
        listed = self.list
        parts = []
        if listed.wanted.text:
            parts.append(f"{self.count:,}/{listed.total:,} {listed.wanted.text}")
        if self._reading and not listed.whole:
            parts.append(f"read {listed.read:,}/{listed.total:,}")
        if not parts and listed.whole and listed.failures:
            parts.append(f"{listed.failures:,} failed")
        self.note = "  ".join(parts)

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
        entry = self.list.shown[line]
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
