"""Banner above the text of a failed kernel: where and why it failed, and what to do."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from textual.events import Resize
from textual.widget import Widget

from pallas_debug.ir.operations import Module
from pallas_debug.model import Failure
from pallas_debug.tui.model.browser import Browser, Entry
from pallas_debug.tui.model.kernels import FAILED
from pallas_debug.tui.widgets.cells import Cells
from pallas_debug.tui.widgets.frame import frame_of
from pallas_debug.tui.widgets.lineview import LineView

TEXT_ROWS = 9
"""Minimum number of rows for the text below, with both borders and the last line."""

_NAMED = re.compile(
    r"\"([a-z_]\w*(?:\.\w+)+)\"\(|'([a-z_]\w*(?:\.\w+)+)' op\b|= ([a-z]\w*(?:\.\w+)+)[ (]"
)
"""Pattern of operations in compiler messages: as printed, or as named by the verifier."""


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """Content of the failure banner.

    Attributes:
      headline: one line that says what failed.
      place: Python line and its text; empty if unknown.
      message: lines of the compiler's message.
      explanation: lines that say what the message means and what to do.
    """

    headline: str
    place: str = ""
    message: tuple[str, ...] = ()
    explanation: tuple[str, ...] = ()

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """All lines below the headline with their styles, the most important ones first."""
        if self.place:
            yield "text-accent", self.place
        yield from (("text-success", line) for line in self.explanation)
        yield from (("", line) for line in self.message)


class FailurePane(LineView):
    """Place and reason of a failure. As high as the advice; the message takes a third at most."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.report: FailureReport | None = None
        self._report_rows: list[tuple[str, str]] = []

    @property
    def count(self) -> int:
        return len(self._report_rows)

    def show(self, browser: Browser, entry: Entry | None, target: str | None) -> None:
        """Show why a kernel failed for a target; hide the banner if it did not."""
        report = report_of(browser, entry, target) if entry is not None else None
        if report == self.report:
            return
        self.report = report
        if report is not None:
            frame_of(self).show_title("", f"{FAILED} {report.headline}")
        self._fit()
        self.changed(keep=0)

    # Height.

    def on_resize(self, event: Resize | None = None) -> None:
        before = self._report_rows
        self._fit()
        if self._report_rows == before:
            super().on_resize()
        else:
            self.changed()

    def _fit(self) -> None:
        # The pane's own width is 0 while it is hidden, and so is that of its frame.
        column = frame_of(self).parent
        width = column.size.width if isinstance(column, Widget) else 0
        width = max((width or self.app.size.width) - 3, 1)
        self._report_rows = list(_wrapped_rows(self.report, width)) if self.report else []
        rows = self.app.size.height
        advice = sum(kind != "" for kind, _ in self._report_rows)
        limit = max(min(advice, rows - TEXT_ROWS), rows // 3 - 2, 1)
        self.styles.height = max(min(len(self._report_rows), limit), 1)

    # Drawing.

    def cells(self, line: int) -> Cells:
        kind, text = self._report_rows[line]
        return [(text, kind)]


def _wrapped_rows(report: FailureReport, width: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of a report, wrapped at words, each with its style."""
    for kind, line in report.lines:
        spaced = line.expandtabs(4)
        depth = " " * (len(spaced) - len(spaced.lstrip()))
        rows = textwrap.wrap(
            spaced,
            width,
            subsequent_indent=depth if len(depth) < width // 2 else "",
            break_on_hyphens=False,
        )
        yield from ((kind, row) for row in rows or [""])


def report_of(browser: Browser, entry: Entry, target: str | None) -> FailureReport | None:
    """Return the failure report of a kernel for a target; None if it did not fail."""
    compilation = browser.compilation(entry, target)
    failure = browser.failure(entry, target)
    if compilation is not None and compilation.compilation is None:
        return FailureReport(
            headline=f"{compilation.target} cannot be read", message=(compilation.problem or "",)
        )
    if failure is None:
        problem = browser.stored(entry).problem
        return (
            FailureReport(headline="the kernel cannot be read", message=(problem,))
            if problem
            else None
        )
    made = compilation.compilation if compilation else None
    failed = next((p.name for p in made.passes if p.failed), failure.last_pass) if made else None
    where = f" in {failed}" if failed and failure.stage == "compile" else ""
    after = f" after {failed}" if failed and not where else ""
    lines = failure.message.strip().split("\n")
    return FailureReport(
        headline=f"{failure.stage} failed{where}{after}: {failure.type}",
        place=_place(browser, entry, failure),
        message=tuple(lines),
        explanation=tuple(failure.explanation.brief()) if failure.explanation else (),
    )


def _place(browser: Browser, entry: Entry, failure: Failure) -> str:
    source = failure.source
    if source is None:
        return ""
    text = source.text
    if not text and source.file == browser.source_file(entry):
        lines = browser.source_lines(entry)
        text = lines[source.line - 1] if 0 < source.line <= len(lines) else None
    return f"{source}   {text.strip()}" if text else str(source)


def failing_line(module: Module, failure: Failure) -> int | None:
    """Return the line of a text, from 0, at which a kernel failed; None if it cannot be determined.

    The line comes from the Python line of the failure, if that is known; of several such lines, it
    is the first whose operation the message names.
    """
    named = {name for found in _NAMED.findall(failure.message) for name in found if name}
    names = module.names
    if failure.source is not None:
        at = module.from_source.get(failure.source.place, [])
        if at:
            return next((i for i in at if names[i] in named), at[0])
    return next((i for i, name in enumerate(names) if name is not None and name in named), None)
