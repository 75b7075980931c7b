"""A verdict in a notebook: the table of kernels and engines, findings, and missing judgements."""

from __future__ import annotations

from pallas_debug.report.markup import Child, Markup
from pallas_debug.report.notebook import checks_html, verdict_mark
from pallas_debug.report.parts.common import Mark, mark, table
from pallas_debug.verdict.formats import text
from pallas_debug.verdict.result import Outcome, Status, Verdict

_MARKS: dict[Status, Mark] = {
    "ok": "ok",
    "found": "bad",
    "skipped": "none",
    "unsupported": "warn",
    "unjudged": "warn",
}


def verdict_html(verdict: Verdict) -> str:
    """Render the whole verdict as HTML."""
    found = [verdict.labelled(finding) for finding in verdict.findings]
    return checks_html(
        verdict_mark(verdict.ok, text.last_word(verdict)),
        found,
        not_checked=[line.strip() for line in text.not_judged(verdict)],
        table=_table(verdict),
        title="Not judged",
    )


def _table(verdict: Verdict) -> Markup:
    columns, rows = text.cells(verdict)
    if not columns:
        return Markup()
    shown: list[list[Child]] = [[label, *map(_cell, outcomes)] for label, outcomes in rows]
    return table("Kernels and engines", ["kernel", *columns], shown)


def _cell(outcome: Outcome | None) -> Child:
    if outcome is None:
        return mark("warn", text.SIGNS["unjudged"])
    return mark(_MARKS[outcome.status], outcome.status)
