"""A verdict as text: table, findings, missing judgements, summary line."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug import render
from pallas_debug.model import Finding, Hint
from pallas_debug.verdict.result import ENGINES, Outcome, Status, Verdict
from pallas_debug.verdict.table import judgements, labels, worst

SIGNS: dict[Status, str] = {
    "ok": "ok",
    "found": "FOUND",
    "skipped": "n/a",
    "unsupported": "?",
    "unjudged": "?",
}
"""Cell text by status; a star marks an engine that ran but left something unjudged."""

NO_REFERENCE = "values not judged (no reference)"
"""End of the summary line of a verdict without a reference."""

MAX_NAME = 40
"""Maximum length of a kernel's name in the first column of the table."""

MAX_REASON = 160
"""Maximum length of a reason in the summary line; the lines above show it in full."""


def verdict_text(verdict: Verdict) -> str:
    """Render the whole verdict."""
    parts = [table(verdict)]
    parts += [
        finding_text(verdict.labelled(finding), verdict.hints_of(finding))
        for finding in verdict.findings
    ]
    sections = hint_lines(verdict), _suppressed(verdict), not_judged(verdict)
    parts += ["\n".join(lines) for lines in sections if lines]
    return "\n\n".join([*filter(None, parts), last_word(verdict)])


def table(verdict: Verdict) -> str:
    """Render a row per kernel and a column per engine; `compile` has a column per target.

    A name longer than `MAX_NAME` has a line of its own, above its row.
    """
    columns, answers = cells(verdict)
    if not columns:
        return ""
    short = [label if len(label) <= MAX_NAME else "" for label, _ in answers]
    rows = [[name, *map(_cell, found)] for name, (_, found) in zip(short, answers, strict=True)]
    heading, *lines = render.aligned([["kernel", *columns], *rows])
    shown = [heading]
    for (label, _), name, line in zip(answers, short, lines, strict=True):
        shown += [line] if name else [label, line]
    return "\n".join(shown)


def cells(verdict: Verdict) -> tuple[list[str], list[tuple[str, list[Outcome | None]]]]:
    """Headings of the columns; for each kernel, its label and outcomes, None for an empty cell."""
    outcomes = [o for o in verdict.outcomes if o.kernel]
    columns = sorted(dict.fromkeys(map(_column, outcomes)), key=lambda c: ENGINES.index(c[0]))
    rows: list[tuple[str, list[Outcome | None]]] = []
    for kernel, label in _labels(verdict).items():
        answers: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in outcomes:
            if (outcome.kernel, outcome.digest) == kernel:
                answers.setdefault(_column(outcome), []).append(outcome)
        found = [worst(answers[column]) if column in answers else None for column in columns]
        rows.append((label, found))
    return [name for _, name in columns], rows


def _labels(verdict: Verdict) -> dict[tuple[str, str], str]:
    return labels((o.kernel, o.digest) for o in verdict.outcomes if o.kernel)


def _column(outcome: Outcome) -> tuple[str, str]:
    return outcome.engine, outcome.column


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return SIGNS["unjudged"]
    return SIGNS[outcome.status] + ("*" if outcome.gaps and outcome.status == "ok" else "")


def finding_text(finding: Finding, hints: Sequence[Hint] = ()) -> str:
    """Render a finding, with the hints on the way to it, and the engines that saw it."""
    engines = ", ".join(_seen_by(finding))
    lines = [render.finding_text(finding)]
    lines += [f"on the way to it: {render.hint_text(hint)}" for hint in hints]
    return "\n  ".join([*lines, *([f"seen by: {engines}"] if engines else [])])


def hint_lines(verdict: Verdict) -> list[str]:
    """List the hints that are not shown with a finding, below a heading."""
    shown = {hint for finding in verdict.findings for hint in verdict.hints_of(finding)}
    lines = [f"  {render.hint_text(hint)}" for hint in verdict.hints if hint not in shown]
    return ["hints, which may be intended and fail nothing:", *lines] if lines else []


def _seen_by(finding: Finding) -> list[str]:
    targets = f"compile for {', '.join(finding.targets)}" if finding.targets else "compile"
    return [targets if name == "compile" else name for name in finding.engines]


def _suppressed(verdict: Verdict) -> list[str]:
    return [
        f"not counted: {render.one_line(render.titled(verdict.labelled(s.finding)))}: {s.reason}"
        for s in verdict.suppressed
    ]


def not_judged(verdict: Verdict) -> list[str]:
    """List missing judgements, each reason once with all cells it applies to; then the notes."""
    names = _labels(verdict)
    reasons: dict[tuple[str, str], list[str]] = {}
    for outcome in verdict.outcomes:
        entries = [("not judged", gap.reason) for gap in outcome.gaps]
        if outcome.status in ("unjudged", "unsupported"):
            entries.insert(0, ("not judged", outcome.reason or outcome.status))
        elif outcome.status == "skipped":
            entries.insert(0, ("not asked", outcome.reason or outcome.status))
        where = f"{names.get((outcome.kernel, outcome.digest), '')} {outcome.column}".strip()
        for key in entries:
            reasons.setdefault(key, []).append(where)
    lines = [f"{what}: {_several(where)}: {reason}" for (what, reason), where in reasons.items()]
    lines += [f"not done: {problem}" for problem in verdict.problems]
    return [*lines, *(f"note: {note}" for note in verdict.notes)]


def _several(where: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(where))
    return shown if len(shown) <= 100 else f"{where[0]} and {len(set(where)) - 1} more"


def last_word(verdict: Verdict) -> str:
    """Summary line: missing judgements, then `2 findings in 1 kernel` or `nothing found in …`."""
    kernels = render.plural(len(verdict.kernels), "kernel")
    asked, uncounted = judgements(verdict.outcomes), _uncounted(verdict)
    parts = list(filter(None, [missing(verdict)]))
    if verdict.problems:
        parts.append(f"not everything was done ({_first(verdict.problems, 'problem')})")
    if verdict.counted:
        where = f" in {kernels}" if verdict.kernels else "; no kernel was judged"
        parts += [f"{render.plural(len(verdict.counted), 'finding')}{where}", *uncounted]
    elif uncounted:
        parts += [*uncounted, f"nothing else found in {kernels}"]
    elif verdict.unjudged and len(verdict.unjudged) >= len(asked):
        parts.append("nothing is known about its kernels")
    else:
        parts.append(f"nothing found {'by the rest' if verdict.unjudged else f'in {kernels}'}")
    limits = [o for o in verdict.outcomes if o.status == "unsupported"]
    if limits and not verdict.findings:
        columns = ", ".join(dict.fromkeys(o.column for o in limits))
        parts.append(
            f"beyond the limits of an engine: {len(limits)} of "
            f"{render.plural(len(asked), 'judgement')} ({columns}); see `not judged`"
        )
    if verdict.reference is None and verdict.kernels:
        parts.append(NO_REFERENCE)
    return f"{render.one_line(verdict.name)}: {'; '.join(parts)}"


def _uncounted(verdict: Verdict) -> list[str]:
    """`1 finding on made-up values, not counted`; empty if all findings count."""
    made_up = sum(bool(finding.made_up) for finding in verdict.findings)
    rest = sum(not finding.counts and not finding.made_up for finding in verdict.findings)
    kinds = [(made_up, "on made-up values"), (rest, "on an unknown condition")]
    parts = [f"{render.plural(count, 'finding')} {kind}" for count, kind in kinds if count]
    return [f"{' and '.join(parts)}, not counted"] if parts else []


def missing(verdict: Verdict) -> str:
    """`2 of 5 judgements not made (v6e: the disk is full; …)`; empty if all were made."""
    reasons: dict[str, list[str]] = {}
    for outcome in verdict.unjudged:
        reasons.setdefault(outcome.reason or outcome.status, []).append(outcome.column)
    if not reasons:
        return ""
    columns = ", ".join(dict.fromkeys(next(iter(reasons.values()))))
    why = f"({columns}: {_first(list(reasons), 'reason')})"
    count = len(judgements(verdict.outcomes))
    if not count:
        return f"nothing was judged {why}"
    return f"{len(verdict.unjudged)} of {render.plural(count, 'judgement')} not made {why}"


def _first(texts: Sequence[str], what: str) -> str:
    """The first of several texts on one line, and how many others there are."""
    line = render.one_line(texts[0].partition("\n")[0]).removesuffix(".")
    line = line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
    return line + (f"; and {render.plural(len(texts) - 1, f'other {what}')}" if texts[1:] else "")
