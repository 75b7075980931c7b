"""Why a kernel failed, as text, and at which line of a text. Imports no textual."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.ir.operations import Module
from pallas_debug.model import Failure
from pallas_debug.tui.model import Browser, Entry

_NAMED = re.compile(
    r"\"([a-z_]\w*(?:\.\w+)+)\"\(|'([a-z_]\w*(?:\.\w+)+)' op\b|= ([a-z]\w*(?:\.\w+)+)[ (]"
)
"""An operation in a message of the compiler: as printed, or as verified."""


@dataclass(frozen=True, kw_only=True)
class Banner:
    """A failure as shown above the text.

    Attributes:
      headline: one line that says where it failed.
      place: the Python line with its text; empty if unknown.
      message: lines of the compiler's message.
      explanation: lines of the explanation.
    """

    headline: str
    place: str = ""
    message: tuple[str, ...] = ()
    explanation: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """All lines, the most important first."""
        return [*filter(None, [self.headline, self.place]), *self.explanation, *self.message]


def report(browser: Browser, entry: Entry, target: str | None) -> Banner | None:
    """The banner of a kernel that failed for a target; None if it did not fail."""
    compilation = browser.compilation(entry, target)
    failure = browser.failure(entry, target)
    if compilation is not None and compilation.compilation is None:
        return Banner(
            headline=f"{compilation.target} cannot be read", message=(compilation.problem or "",)
        )
    if failure is None:
        problem = browser.stored(entry).problem
        return Banner(headline="the kernel cannot be read", message=(problem,)) if problem else None
    made = compilation.compilation if compilation else None
    failed = next((p.name for p in made.passes if p.failed), failure.last_pass) if made else None
    where = f" in {failed}" if failed and failure.stage == "compile" else ""
    after = f" after {failed}" if failed and not where else ""
    lines = failure.message.strip().split("\n")
    return Banner(
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


def line_of(lines: Sequence[str], failure: Failure) -> int | None:
    """Number of the line of a text where a kernel failed, from 0; None if unknown.

    A line that comes from the failure's Python line, if it has one; of several, the first whose
    operation the message names.
    """
    module = Module(lines)
    named = {name for found in _NAMED.findall(failure.message) for name in found if name}
    names = module.names
    if failure.source is not None:
        at = module.from_source.get((failure.source.file, failure.source.line), [])
        if at:
            return next((i for i in at if names[i] in named), at[0])
    return next((i for i, name in enumerate(names) if name is not None and name in named), None)
