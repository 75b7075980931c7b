"""Why a kernel failed, as lines to show, and where in a text it did."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.ir.operations import Module
from pallas_debug.model import Failure, Kernel
from pallas_debug.tui.model.browser import Browser, Entry

_NAMED = re.compile(
    r"\"([a-z_]\w*(?:\.\w+)+)\"\(|'([a-z_]\w*(?:\.\w+)+)' op\b|= ([a-z]\w*(?:\.\w+)+)[ (]"
)
"""Operations in compiler messages: as they are printed, or as named by the verifier."""


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """A failure as the banner above the text shows it.

    Attributes:
      headline: one line that says what failed.
      place: the Python line and its text; empty if unknown.
      message: lines of the compiler's message.
      explanation: lines on what it means and what to do.
    """

    headline: str
    place: str = ""
    message: tuple[str, ...] = ()
    explanation: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """All lines, the most important ones first."""
        return [*filter(None, [self.headline, self.place]), *self.explanation, *self.message]


def report(browser: Browser, entry: Entry, target: str | None) -> FailureReport | None:
    """Return the report on a kernel that failed for a target; None for one that did not."""
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


def explanation(failure: Failure, kernel: Kernel | None) -> list[str]:
    """Explain a failure: its cause, details from the message, what to try.

    Asks plugins of other distributions first, which may take a while; one that cannot be loaded is
    ignored.
    """
    from pallas_debug.findings import explain
    from pallas_debug.hooks import explanations, plugin_manager

    try:
        extra = explanations(plugin_manager(), failure.message)
    except Exception:  # noqa: BLE001 - a broken plugin must not hide the failure
        extra = []
    found = explain.of_failure(failure, kernel, extra=extra)
    return found.brief() if found is not None else []


def prepare() -> None:
    """Import what `explanation` needs."""
    explanation(Failure(stage="compile", type="", message=""), None)


def line_of(lines: Sequence[str], failure: Failure) -> int | None:
    """Return the line of a text, from 0, at which a kernel failed, if it can be told.

    It comes from the Python line of the failure, if there is one; of several such lines, the first
    whose operation the message names.
    """
    module = Module(lines)
    named = {name for found in _NAMED.findall(failure.message) for name in found if name}
    names = module.names
    if failure.source is not None:
        at = module.from_source.get((failure.source.file, failure.source.line), [])
        if at:
            return next((i for i in at if names[i] in named), at[0])
    return next((i for i, name in enumerate(names) if name is not None and name in named), None)
