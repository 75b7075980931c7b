"""The banner above the text of a kernel that failed: where, why, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import work
from textual.events import Resize
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from pallas_debug.errors import PallasDebugError
from pallas_debug.model import Failure, Kernel
from pallas_debug.tui.model import DEBOUNCE
from pallas_debug.tui.model import failure as failures
from pallas_debug.tui.model.browser import Browser, Entry, TextPlace
from pallas_debug.tui.model.failure import FailureReport
from pallas_debug.tui.model.kernels import FAILED
from pallas_debug.tui.widgets.cells import Cells
from pallas_debug.tui.widgets.lineview import LineView

MARGIN = 2
"""Columns before each line."""

AT_ONCE = 500_000
"""Maximum size in bytes of a text whose failing line is found before it is drawn."""


class FailurePane(LineView):
    """Where and why a kernel failed; at most a third of the height, or one line when folded."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"failure--head", "failure--place", "failure--help"}
    DEFAULT_CSS = """
    FailurePane {
        display: none;
        & .failure--head { color: $text-error; text-style: bold; }
        & .failure--place { color: $text-accent; }
        & .failure--help { color: $text-success; }
    }
    """

    folded: reactive[bool] = reactive(False)

    class LineFound(Message):
        """The line at which the kernel failed is known."""

        def __init__(self, place: TextPlace, line: int) -> None:
            self.place = place
            self.line = line
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.report: FailureReport | None = None
        self._report_rows: list[tuple[str, str]] = []
        self._timer: Timer | None = None

    @property
    def count(self) -> int:
        return min(len(self._report_rows), 1) if self.folded else len(self._report_rows)

    def show(self, browser: Browser, entry: Entry | None, target: str | None) -> None:
        """Show why a kernel failed for a target; hide the banner if it did not."""
        report = failures.report(browser, entry, target) if entry is not None else None
        if report == self.report:
            return
        self.workers.cancel_group(self, "explain")
        if self._timer is not None:
            self._timer.stop()
        self._set_report(report, keep=0)
        failure = browser.failure(entry, target) if entry is not None else None
        if failure is not None and entry is not None:
            kernel = browser.stored(entry).kernel
            # A second busy thread would delay this screen, and the next kernel too.
            explain = partial(self._explain_if_shown, failure, kernel, report)
            self._timer = self.set_timer(DEBOUNCE, explain)

    def _explain_if_shown(
        self, failure: Failure, kernel: Kernel | None, report: FailureReport | None
    ) -> None:
        if report is self.report:
            self._explain(failure, kernel, report)

    @work(thread=True, group="explain")
    def _explain(
        self, failure: Failure, kernel: Kernel | None, report: FailureReport | None
    ) -> None:
        lines = failures.explanation(failure, kernel)
        if lines:
            self.call_later(self._explained, report, lines)

    def _explained(self, report: FailureReport | None, lines: Sequence[str]) -> None:
        if report is not None and report is self.report:
            self._set_report(replace(report, explanation=tuple(lines)), keep=self.cursor)

    def _set_report(self, report: FailureReport | None, *, keep: int) -> None:
        self.report = report
        self.display = report is not None
        self._fit()
        self.changed(keep=keep)

    def find_line(self, browser: Browser, place: TextPlace) -> None:
        """Find the line of a text at which its kernel failed, and post `LineFound`."""
        failure = browser.failure(place.entry, place.target)
        if failure is None or not place.step.of_kernel:
            return
        try:
            small = browser.path(place).stat().st_size <= AT_ONCE
        except (OSError, PallasDebugError):  # the text pane reports that the text is missing
            return
        if small:
            self._find_line(browser, place, failure)
        else:
            self._find_line_in_background(browser, place, failure)

    def _find_line(self, browser: Browser, place: TextPlace, failure: Failure) -> None:
        line = failures.line_of(browser.lines(place), failure)
        if line is not None:
            self.post_message(self.LineFound(place, line))

    @work(thread=True, exclusive=True, group="line")
    def _find_line_in_background(
        self, browser: Browser, place: TextPlace, failure: Failure
    ) -> None:
        self._find_line(browser, place, failure)

    # Height.

    def watch_folded(self) -> None:
        self._fit()
        self.changed(keep=0)

    def on_resize(self, event: Resize | None = None) -> None:
        before = self._report_rows
        self._fit()
        if self._report_rows == before:
            super().on_resize()
        else:
            self.changed()

    def _fit(self) -> None:
        # The pane's own width is 0 while it is hidden.
        width = self.parent.size.width if isinstance(self.parent, Widget) else 0
        width = max((width or self.app.size.width) - 1, MARGIN + 1)
        self._report_rows = list(_wrapped_rows(self.report, width)) if self.report else []
        limit = 1 if self.folded else max((self.app.size.height - 2) // 3, 1)
        self.styles.height = max(min(len(self._report_rows), limit), 1)

    # Drawing.

    def cells(self, line: int) -> Cells:
        kind, text = self._report_rows[line]
        return [(text, kind)]


def _wrapped_rows(report: FailureReport, width: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of a report, wrapped at words, each with its style."""
    lines = report.lines
    helps = len(lines) - len(report.message)
    for number, line in enumerate(lines):
        if number == 0:
            kind, indent = "failure--head", f"{FAILED} "
        elif number == 1 and report.place:
            kind, indent = "failure--place", " " * MARGIN
        else:
            kind, indent = "failure--help" if number < helps else "", " " * MARGIN
        spaced = line.expandtabs(4)
        depth = " " * (MARGIN + len(spaced) - len(spaced.lstrip()))
        rows = textwrap.wrap(
            spaced,
            width,
            initial_indent=indent,
            subsequent_indent=depth if len(depth) < width // 2 else "",
            drop_whitespace=True,
            break_on_hyphens=False,
        )
        yield from ((kind, row) for row in rows or [""])
