"""The banner above the text of a kernel that failed: where, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.events import Resize
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from pallas_debug.errors import PallasDebugError
from pallas_debug.model import Failure, Kernel
from pallas_debug.tui import failure as failures
from pallas_debug.tui.cells import cells
from pallas_debug.tui.failure import Report
from pallas_debug.tui.lineview import Cells, LineView
from pallas_debug.tui.model import Browser, Entry, Place
from pallas_debug.tui.rows import FAILED

AT_ONCE = 500_000
"""Bytes of a text up to which the failing line is found before the text is drawn."""


class FailurePane(LineView):
    """Where and why a kernel failed; at most a third of the height, or one line when folded."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"failure--head", "failure--place", "failure--help"}
    DEFAULT_CSS = """
    FailurePane {
        display: none;
        &.failed { display: block; }
        & .failure--head { color: $text-error; text-style: bold; }
        & .failure--place { color: $text-accent; }
        & .failure--help { color: $text-success; }
    }
    """

    folded: reactive[bool] = reactive(False)

    class Landed(Message):
        """The line is known at which the kernel failed."""

        def __init__(self, place: Place, line: int) -> None:
            self.place = place
            self.line = line
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.report: Report | None = None
        self._lines: list[str] = []
        self.set_reactive(FailurePane.wrap, True)

    @property
    def count(self) -> int:
        return min(len(self._lines), 1) if self.folded else len(self._lines)

    def show(self, browser: Browser, entry: Entry | None, target: str | None) -> None:
        """Show why a kernel failed for a target; nothing where it did not."""
        report = failures.report(browser, entry, target) if entry is not None else None
        if report == self.report:
            return
        self.workers.cancel_group(self, "explain")
        self._take(report, keep=0)
        failure = browser.failure(entry, target) if entry is not None else None
        if failure is not None and entry is not None:
            kernel = browser.stored(entry).kernel
            explain = self._explainer(failure, kernel, report)
            self.run_worker(explain, thread=True, group="explain")

    def _explainer(
        self, failure: Failure, kernel: Kernel | None, report: Report | None
    ) -> Callable[[], None]:
        def explain() -> None:
            lines = failures.explanation(failure, kernel)
            if lines:
                self.call_later(self._explained, report, lines)

        return explain

    def _explained(self, report: Report | None, lines: Sequence[str]) -> None:
        if report is not None and report is self.report:
            self._take(replace(report, explanation=tuple(lines)), keep=self.cursor)

    def _take(self, report: Report | None, *, keep: int) -> None:
        self.report = report
        self._lines = report.lines if report else []
        self.set_class(report is not None, "failed")
        self._fit()
        self.changed(keep=keep)

    def land(self, browser: Browser, place: Place) -> None:
        """Find the line of a text at which its kernel failed; `Landed` tells it."""
        failure = browser.failure(place.entry, place.target)
        if failure is None or not place.step.of_kernel:
            return

        def find() -> None:
            line = failures.line_of(browser.lines(place), failure)
            if line is not None:
                self.post_message(self.Landed(place, line))

        try:
            small = browser.path(place).stat().st_size <= AT_ONCE
        except (OSError, PallasDebugError):  # there is no such text, which the text's pane says
            return
        if small:
            find()
        else:
            self.run_worker(find, thread=True, group="land", exclusive=True)

    # How high it is.

    def watch_folded(self) -> None:
        self._fit()
        self.changed(keep=0)

    def on_resize(self, event: Resize | None = None) -> None:
        self._fit()
        super().on_resize()

    def _fit(self) -> None:
        # Not its own size, which is none as long as it is away.
        width = self.parent.size.width if isinstance(self.parent, Widget) else 0
        width = max((width or self.app.size.width) - 2, 1)
        rows = sum(max(-(-cells(line) // width), 1) for line in self._lines)
        most = 1 if self.folded else max((self.app.size.height - 2) // 3, 1)
        self.styles.height = max(min(rows, most), 1)

    # Drawing.

    def cells(self, line: int) -> Cells:
        report = self.report
        assert report is not None
        text = self._lines[line]
        if line == 0:
            return [(f"{FAILED} {text}", "failure--head")]
        if line == 1 and report.place:
            return [(f"  {text}", "failure--place")]
        helps = line < len(self._lines) - len(report.message)
        return [(f"  {text}", "failure--help" if helps else "")]
