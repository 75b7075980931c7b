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


def verdict_text(verdict: Verdict, *, verbose: bool = False) -> str:
    """Render the whole verdict.

    Args:
      verbose: whether to show the details of findings.
    """
    parts = [table(verdict)]
    parts += [
        finding_text(verdict.labelled(finding), verdict.hints_of(finding), verbose=verbose)
        for finding in verdict.findings
    ]
    sections = hint_lines(verdict), _suppressed(verdict), not_judged(verdict)
    parts += ["\n".join(lines) for lines in sections if lines]
    return "\n\n".join([*filter(None, parts), last_word(verdict)])


def table(verdict: Verdict) -> str:
    """Render a row per kernel and a column per engine; `compile` has a column per target.

    A name longer than `MAX_NAME` has a line of its own, above its row.
    """
    outcomes = [outcome for outcome in verdict.outcomes if outcome.kernel]
    order = sorted(outcomes, key=lambda outcome: ENGINES.index(outcome.engine))
    columns = list(dict.fromkeys(outcome.column for outcome in order))
    if not columns:
        return ""
    rows: dict[str, list[str]] = {}
    for kernel, label in _labels(verdict).items():
        mine = [o for o in outcomes if (o.kernel, o.digest) == kernel]
        rows[label] = [_cell([o for o in mine if o.column == column]) for column in columns]
    short = [[name if len(name) <= MAX_NAME else "", *cells] for name, cells in rows.items()]
    heading, *lines = render.aligned([["kernel", *columns], *short])
    shown = [heading]
    for name, line in zip(rows, lines, strict=True):
        shown += [line] if len(name) <= MAX_NAME else [name, line]
    sampled = dict.fromkeys(o.points for o in outcomes if o.points is not None)
    shown += [f"* of {done:,} of {points:,} grid points" for done, points in sampled]
    return "\n".join(shown)


def _labels(verdict: Verdict) -> dict[tuple[str, str], str]:
    return labels((o.kernel, o.digest) for o in verdict.outcomes if o.kernel)


def _cell(answers: Sequence[Outcome]) -> str:
    if not answers:
        return SIGNS["unjudged"]
    one = worst(answers)
    is_partial = one.points is not None or (one.gaps and one.status == "ok")
    return SIGNS[one.status] + ("*" if is_partial else "")


def finding_text(finding: Finding, hints: Sequence[Hint] = (), *, verbose: bool = False) -> str:
    """Render a finding, with the nearest hint on the way to it."""
    lines = [f"on the way to it: {render.hint_text(hint)}" for hint in hints[:1]]
    return "\n  ".join([render.finding_text(finding, verbose=verbose), *lines])


def hint_lines(verdict: Verdict) -> list[str]:
    """List the hints that are not shown with a finding, below a heading."""
    shown = {hint for finding in verdict.findings for hint in verdict.hints_of(finding)[:1]}
    lines = [f"  {render.hint_text(hint)}" for hint in verdict.hints if hint not in shown]
    return ["hints, which may be intended and fail nothing:", *lines] if lines else []


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
        where = f"{names.get((outcome.kernel, outcome.digest), '')} {outcome.column}".strip()
        entries = [("not judged", gap.reason) for gap in outcome.all_gaps]
        if outcome.status == "skipped":
            entries = [("not asked", outcome.reason or outcome.status), *entries]
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
    asked = judgements(verdict.outcomes)
    parts, uncounted = [], _uncounted(verdict)
    if verdict.unjudged:
        reasons = list(dict.fromkeys(o.reason or o.status for o in verdict.unjudged))
        columns = dict.fromkeys(o.column for o in verdict.unjudged if o.reason == reasons[0])
        count = f"{len(verdict.unjudged)} of {render.plural(len(asked), 'judgement')} not made"
        why = f"{', '.join(columns)}: {_first(reasons, 'reason')}"
        parts.append(f"{count if asked else 'nothing was judged'} ({why})")
    if sampled := [o for o in verdict.outcomes if o.points is not None]:
        columns = dict.fromkeys(o.column for o in sampled)
        parts.append(f"judged in part: {', '.join(columns)}")
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
        columns = dict.fromkeys(outcome.column for outcome in limits)
        parts.append(
            f"beyond the limits of an engine: {len(limits)} of "
            f"{render.plural(len(asked), 'judgement')} ({', '.join(columns)}); see `not judged`"
        )
    if verdict.reference is None and verdict.kernels:
        parts.append(NO_REFERENCE)
    return f"{render.one_line(verdict.name)}: {'; '.join(parts)}"


def _uncounted(verdict: Verdict) -> list[str]:
    """`1 finding on made-up values, not counted`; empty if all findings count."""
    rest = [finding for finding in verdict.findings if not finding.counts]
    made_up = sum(bool(finding.made_up) for finding in rest)
    kinds = [(made_up, "on made-up values"), (len(rest) - made_up, "on an unknown condition")]
    parts = [f"{render.plural(count, 'finding')} {kind}" for count, kind in kinds if count]
    return [f"{' and '.join(parts)}, not counted"] if parts else []


def _first(texts: Sequence[str], what: str) -> str:
    """The first of several texts on one line, and how many others there are."""
    line = render.one_line(texts[0].partition("\n")[0]).removesuffix(".")
    line = line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
    return line + (f"; and {render.plural(len(texts) - 1, f'other {what}')}" if texts[1:] else "")
