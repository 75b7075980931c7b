"""A verdict as a person reads it: the table, the findings, what was not judged, the last word."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug import report
from pallas_debug.model import Finding
from pallas_debug.verified.result import ENGINES, Outcome, Verdict

SIGNS = {"ok": "ok", "found": "FOUND", "skipped": "-", "unsupported": "?"}
"""How a cell says its status; an engine that ran and left something unjudged has a star."""


def verdict_text(verdict: Verdict) -> str:
    """Everything that there is to say."""
    parts = [table(verdict)]
    parts += [finding_text(finding) for finding in verdict.findings]
    parts += ["\n".join(lines) for lines in (_suppressed(verdict), not_judged(verdict)) if lines]
    return "\n\n".join([*filter(None, parts), last_word(verdict)])


def table(verdict: Verdict) -> str:
    """Kernels by engines; for compilations a column for each target."""
    outcomes = [o for o in verdict.outcomes if o.kernel]
    columns = sorted(dict.fromkeys(map(_column, outcomes)), key=lambda c: ENGINES.index(c[0]))
    if not columns:
        return ""
    rows = [["kernel", *(name for _, name in columns)]]
    for kernel in verdict.kernels:
        cells: dict[tuple[str, str], str] = {}
        for outcome in outcomes:
            if outcome.kernel == kernel:
                column = _column(outcome)
                cells[column] = _worse(cells.get(column), _cell(outcome))
        rows.append([kernel, *(cells.get(column, SIGNS["skipped"]) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _column(outcome: Outcome) -> tuple[str, str]:
    return outcome.engine, outcome.column


def _cell(outcome: Outcome) -> str:
    return SIGNS[outcome.status] + ("*" if outcome.notes and outcome.status == "ok" else "")


def _worse(a: str | None, b: str) -> str:
    """Of two kernels of one name, what is worse."""
    order = ["ok", "ok*", *(SIGNS[s] for s in ("skipped", "unsupported", "found"))]
    return b if a is None else max(a, b, key=order.index)


def finding_text(finding: Finding) -> str:
    """The finding, and who saw it."""
    engines = ", ".join(_seen_by(finding))
    return report.finding_text(finding) + (f"\n  seen by: {engines}" if engines else "")


def _seen_by(finding: Finding) -> list[str]:
    names = [name for name in (finding.engine or "").split(", ") if name]
    targets = finding.values.get("targets")
    return [f"compile for {targets}" if n == "compile" and targets else n for n in names]


def _suppressed(verdict: Verdict) -> list[str]:
    return [
        f"not counted: {s.finding.kind} in kernel `{s.finding.kernel}`: {s.reason}"
        for s in verdict.suppressed
    ]


def not_judged(verdict: Verdict) -> list[str]:
    """What was not looked at, each reason once with all that it holds for."""
    reasons: dict[str, list[str]] = {}
    for outcome in verdict.outcomes:
        given = [outcome.reason or outcome.status] if outcome in verdict.gaps else []
        for reason in (*given, *outcome.notes):
            reasons.setdefault(reason, []).append(f"{outcome.kernel} {outcome.column}".strip())
    lines = [f"not judged: {_several(where)}: {reason}" for reason, where in reasons.items()]
    return [*lines, *(f"note: {note}" for note in verdict.notes)]


def _several(where: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(where))
    return shown if len(shown) <= 100 else f"{where[0]} and {len(set(where)) - 1} more"


def last_word(verdict: Verdict) -> str:
    """`2 findings in 1 kernel`, or that there is none and what that is worth."""
    kernels = report.plural(len(verdict.kernels), "kernel")
    if verdict.findings:
        found = report.plural(len(verdict.findings), "finding")
        return f"{verdict.name}: {found} in {kernels}"
    gaps = " by those who could look; see `not judged`" if verdict.gaps else ""
    return f"{verdict.name}: nothing found in {kernels}{gaps}"
