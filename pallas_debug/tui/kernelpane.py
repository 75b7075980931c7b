"""The pane of kernels: each with its targets and what became of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import ClassVar

from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.worker import get_current_worker

from pallas_debug.tui.kernels import KernelList, Line
from pallas_debug.tui.lineview import Cells
from pallas_debug.tui.listpane import ListPane, fitted
from pallas_debug.tui.model import Browser, Entry
from pallas_debug.tui.rows import FAILED, OK, UNKNOWN, Filter, Row
from pallas_debug.tui.runs import Runs

BUDGET = 0.02
"""Seconds that drawing may spend on reading rows; the rest is read aside and drawn later."""

FEW = 500
"""Kernels up to which all rows are read at the start, so that they can be counted."""

_LEAST = 10
"""Cells that a name keeps where its targets have no room."""

TICK = 0.2
"""Seconds between two times that progress is shown."""

SWITCH = 0.001
"""Seconds for which a worker keeps the interpreter: the screen waits no longer for its turn."""

FLAG = "⚑"
"""There are findings on the kernel."""

_STYLES = {OK: "kernels--ok", FAILED: "kernels--failed", UNKNOWN: "kernels--unknown"}


class KernelPane(ListPane):
    """Kernels: what became of each, its name, its targets, and what else there is room for."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "kernels--ok",
        "kernels--failed",
        "kernels--unknown",
        "kernels--flag",
        "kernels--more",
    }
    DEFAULT_CSS = """
    KernelPane {
        & .kernels--ok { color: $text-success; }
        & .kernels--failed { color: $text-error; text-style: bold; }
        & .kernels--unknown { color: $text-warning; }
        & .kernels--flag { color: $text-warning; text-style: bold; }
        & .kernels--more { text-style: dim; }
    }
    """

    filter_hint = "part of the name, target:v5e, status:failed, test:NAME"

    side: reactive[int] = reactive(0)
    """Which of two directories the kernel is shown from, where both have it."""

    def __init__(self, browser: Browser, *, id: str) -> None:
        super().__init__(id=id)
        self._browser = browser
        self.list = KernelList(browser)
        self.runs = Runs(browser)
        """What tests and scripts recorded; read aside, a moment after the start."""
        self._drawn_until = 0.0
        self._unread: list[Entry] = []
        self._reading = False
        self._seeking = False

    def on_mount(self) -> None:
        sys.setswitchinterval(SWITCH)
        if self.list.total <= FEW:
            self.call_after_refresh(self.read_all)
        self.list.tests = self.runs.tests
        self.call_after_refresh(self.read_runs)
        self._tell()

    # What is listed.

    @property
    def count(self) -> int:
        return len(self.list.shown)

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        return self.list.shown[self.cursor] if self.count else None

    @property
    def current(self) -> Entry | None:
        """The kernel under the cursor."""
        line = self.line
        if line is None:
            return None
        return next((e for e in line.entries if e.dump == self.side), line.entries[0])

    def select(self, entry: Entry) -> bool:
        """Put the cursor on a kernel; whether it is there. A filter that hides it goes.

        The caller shows it: nothing is told of the move.
        """
        listed = self.list
        if all(entry not in line.entries for line in listed.shown):
            listed.wanted = Filter()
            listed.arrange()
            self._tell()
        at = next((i for i, line in enumerate(listed.shown) if entry in line.entries), None)
        if at is None:
            return False
        self.set_reactive(KernelPane.side, entry.dump)
        self.changed(keep=at)
        return True

    def reload(self) -> None:
        """Take over what the browser lists now."""
        before = self.current, self.line
        self.list.reload()
        self._show(*before)
        if self.runs.stale():
            self.runs.forget()
            self.list.tests = self.runs.tests
            self.read_runs()

    def forget(self, entry: Entry) -> None:
        """Read the row of a kernel again."""
        self.list.forget(entry)
        self.refresh()

    def rearrange(self) -> None:
        """Filter and order anew by what is known; the cursor stays on its kernel."""
        before = self.current, self.line
        self.list.arrange()
        self._show(*before)

    def _show(self, current: Entry | None, line: Line | None) -> None:
        shown = self.list.shown
        keep = self.cursor if line is not None else 0
        if line is not None and line in shown[keep : keep + 1]:
            pass  # where it was
        elif line is not None and line in shown:
            keep = shown.index(line)
        self._tell()
        self.changed(keep=keep)
        if self.current != current:
            self.post_message(self.Moved(self, self.cursor))

    def watch_side(self) -> None:
        self.refresh()
        if self.is_mounted and self.line is not None and len(self.line.entries) > 1:
            self.post_message(self.Moved(self, self.cursor))

    # Filter and order.

    @property
    def filter_text(self) -> str:
        return self.list.wanted.text

    def filter(self, text: str) -> None:
        self.list.wanted = Filter.of(text)
        if self.list.wanted.reads:
            self.read_all()
        self.rearrange()

    def peel(self) -> bool:
        if self._seeking:
            self._seeking = False
            self.workers.cancel_group(self, "seek")
            self._tell()
            return True
        if super().peel():
            return True
        if self.list.failed_first:
            self.failed_first(False)
            return True
        return False

    def failed_first(self, wanted: bool) -> None:
        """Show what failed before the others, or by name again."""
        self.list.failed_first = wanted
        if wanted:
            self.read_all()
        self.rearrange()

    def next_failed(self, direction: int) -> None:
        """Put the cursor on the next kernel that failed, or the previous one, once it is found."""
        if self.count:
            self._seeking = True
            self.run_worker(
                lambda: self._seek(direction), thread=True, group="seek", exclusive=True
            )

    def _seek(self, direction: int) -> None:
        worker = get_current_worker()
        at = self.list.find_failed(self.cursor, direction, lambda: worker.is_cancelled)
        if not worker.is_cancelled:
            self.call_later(self._found, at)

    def _found(self, at: int | None) -> None:
        self._seeking = False
        self._tell()
        if at is None:
            self.note = "no kernel failed"
        elif at < self.count:
            self.cursor = at

    # Reading what stands in the folders.

    def read_all(self) -> None:
        """Read the rows of all kernels, aside and in slices."""
        if not self._reading and not self.list.whole:
            self._reading = True
            self.run_worker(self._read_all, thread=True, group="rows")

    def _read_all(self) -> None:
        worker = get_current_worker()
        told = time.monotonic()

        def stopped() -> bool:
            nonlocal told
            if time.monotonic() - told > TICK and not worker.is_cancelled:
                told = time.monotonic()
                self.call_later(self._read_more)
            return worker.is_cancelled

        self.list.read_all(stopped)
        if not worker.is_cancelled:
            self.call_later(self._read_whole)

    def _read_more(self) -> None:
        if self.list.wanted.reads or self.list.failed_first:
            self.rearrange()
        self._tell()

    def _read_whole(self) -> None:
        self._reading = False
        self._read_more()
        self.refresh()

    def read_runs(self) -> None:
        """Read what tests and scripts recorded, aside."""

        def read() -> None:
            worker = get_current_worker()
            self.runs.read(lambda: worker.is_cancelled)
            self.call_later(self.rearrange if self.list.wanted.test else self.refresh)

        self.run_worker(read, thread=True, group="runs", exclusive=True)

    def _read_screen(self) -> None:
        """Read the rows that were drawn without being known."""
        wanted, self._unread = self._unread, []

        def read() -> None:
            for entry in wanted:
                self.list.learn(entry)
            self.call_later(self.refresh)

        self.run_worker(read, thread=True, group="screen")

    def _tell(self) -> None:
        """What is said below the list."""
        said = []
        listed = self.list
        if listed.wanted.text:
            said.append(f"{self.count:,}/{len(listed.lines):,} {listed.wanted.text}")
        if listed.failed_first:
            said.append(f"failed first: {listed.failures:,}")
        if self._reading and not listed.whole:
            said.append(f"read {listed.read:,}/{listed.total:,}")
        elif self._seeking:
            said.append("looking for one that failed")
        if len(self._browser.roots) > 1:
            said.append(_shared(listed.shared))
        elif not said and self.count > self.size.height > 0:
            failed = f", {listed.failures:,} failed" if listed.failures and listed.whole else ""
            said.append(f"{self.count:,} kernels{failed}")
        self.note = "  ".join(said)

    def on_resize(self) -> None:
        super().on_resize()
        self._tell()

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        self._drawn_until = time.monotonic() + BUDGET
        strips = super().render_lines(crop)
        if self._unread:
            self.call_later(self._read_screen)
        return strips

    def _row(self, entry: Entry) -> Row | None:
        row = self.list.known(entry)
        if row is None and time.monotonic() < self._drawn_until:
            return self.list.learn(entry)
        if row is None and entry not in self._unread:
            self._unread.append(entry)
        return row

    def cells(self, line: int) -> Cells:
        shown = self.list.shown[line]
        rows = [self._row(entry) for entry in shown.entries]
        known = [row for row in rows if row is not None]
        marks = [row.mark for row in known]
        mark = next((m for m in (FAILED, UNKNOWN, OK) if m in marks), "…")
        before: Cells = [(f"{mark} ", _STYLES.get(mark, "kernels--more"))]
        if len(self._browser.roots) > 1:
            before.insert(0, (f"{shown.dumps:2} ", "kernels--more"))
        after: Cells = []
        if flags := sum(self.runs.flags.get(entry.name, 0) for entry in shown.entries):
            after.append((f" {FLAG}{flags}", "kernels--flag"))
        after.append(("  ", ""))
        if len(known) == len(rows):
            after += _targets(known)
        more: Cells = []
        if len(known) == len(rows):
            more += [(f" grid {row.grid}", "kernels--more") for row in known[:1] if row.grid]
            more += [(f"  {row.failing}", "kernels--failed") for row in known[:1] if row.failing]
        # The last blank need not be seen; the mark that there is more does.
        room = self.columns + (not more) - sum(len(text) for text, _ in (*before, *after))
        return [*before, (self._shown_name(shown.name, room), ""), *after, *more]

    def _shown_name(self, name: str, room: int) -> str:
        """The name, cut so that what became of the kernel is seen; whole once one pans."""
        return name if self.panned or len(name) <= room else fitted(name, max(room, _LEAST))


def _targets(rows: list[Row]) -> Cells:
    """Each target with its mark; with those of both directories where they differ."""
    names = dict.fromkeys(name for row in rows for name, _ in row.targets)
    cells: Cells = []
    for name in names:
        marks = [dict(row.targets).get(name, "·") for row in rows]
        shown = marks[0] if len(set(marks)) == 1 else "".join(marks)
        worst = next((m for m in (FAILED, UNKNOWN, OK) if m in marks), OK)
        cells.append((f"{shown}{name} ", _STYLES[worst]))
    return cells


def _shared(counts: Mapping[str, int]) -> str:
    """`10 in both, 1 only in A`."""
    only = [f"{counts[side]:,} only in {side}" for side in "AB" if counts[side]]
    return ", ".join([f"{counts['AB']:,} in both", *only])
