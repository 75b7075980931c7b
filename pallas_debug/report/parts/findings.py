"""Findings: what happened, at which line, with which values, why, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pallas_debug.model import Finding, Gap, Hint, PrintRecord, SourceLine
from pallas_debug.render import consequence_texts
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import Mark, facts, mark, place, quoted

Link = Callable[[SourceLine], str | None]
"""The address of a line in the page; None if the page does not show it."""

MAX_SHOWN = 200
"""Maximum number of findings or prints shown in one list."""


def nowhere(_: SourceLine) -> None:
    """The link of notebooks, which show no source."""


def severity(finding: Finding) -> Mark:
    """Mark of a finding: an error, or a weakness."""
    return "warn" if not finding.counts else "bad"


def finding_card(finding: Finding, link: Link) -> Markup:
    """One finding."""
    source = finding.source
    where = [place(source, link(source))] if source is not None else []
    if finding.grid_point:
        where.append(tag("span", f"grid point {finding.grid_point}"))
    if finding.loop:
        where.append(tag("span", f"loop iteration {finding.loop}"))
    if finding.count > 1:
        where.append(tag("span", f"{finding.count:,} times"))
    values = ", ".join(f"{name} = {value}" for name, value in finding.values.items())
    operand = " ".join(filter(None, (finding.index or finding.operand, finding.witness.shape)))
    heading = tag("h4", mark(severity(finding), str(finding.kind)))
    other = finding.other
    return tag(
        "article",
        tag("header", heading, tag("p", where, class_="pd-where"), class_="pd-head"),
        quoted(source, link(source)) if source is not None and source.text else None,
        [tag("p", line) for line in finding.message.splitlines()],
        facts(
            [
                ("operand", operand),
                ("values", values),
                ("other side", quoted(other, link(other)) if other is not None else None),
                *(("consequence", text) for text in consequence_texts(finding)),
                ("cause", finding.cause),
                ("try", finding.advice),
                ("on", ", ".join(finding.targets)),
                ("seen by", ", ".join(finding.engines)),
                (
                    "rests on",
                    f"made-up values of {' and '.join(finding.made_up)}: it may not happen with "
                    "real values"
                    if finding.made_up
                    else None,
                ),
                ("a fault only if", finding.only_if),
            ]
        ),
        class_=f"pd-card pd-finding pd-is-{severity(finding)}",
    )


def finding_list(findings: Sequence[Finding], link: Link = nowhere) -> Markup:
    """Findings, worst first; what is left out is counted."""
    ordered = sorted(findings, key=lambda finding: (not finding.counts, finding.kind.severity))
    cards = [finding_card(finding, link) for finding in ordered[:MAX_SHOWN]]
    more = len(ordered) - len(cards)
    rest = tag("p", f"{more:,} more findings are not shown here.", class_="pd-more")
    return tag("div", cards, rest if more else None, class_="pd-cards") if cards else Markup()


def hint_list(hints: Collection[Hint], link: Link = nowhere) -> Markup:
    """Hints, a line each: what looks unintended, but fails nothing."""
    rows = []
    for hint in [*hints][:MAX_SHOWN]:
        at = [place(hint.source, link(hint.source)), " "] if hint.source is not None else []
        rows.append([at, hint.message, tag("span", f" (hint: {hint.kind})")])
    return _listed("ul", rows, len(hints), "pd-dim")


def gap_list(gaps: Collection[Gap]) -> Markup:
    """Judgements that runs were asked for and did not make, or made only in part."""
    rows = [
        [tag("b", gap.engine), " in part" if gap.is_partial else None, f": {gap.reason}"]
        for gap in [*gaps][:MAX_SHOWN]
    ]
    return _listed("ul", rows, len(gaps))


def print_list(prints: Sequence[PrintRecord], link: Link = nowhere) -> Markup:
    """Output of the kernel's prints."""
    rows = []
    for record in prints[:MAX_SHOWN]:
        at = [place(record.source, link(record.source))] if record.source is not None else []
        if record.grid_point:
            at.append(tag("span", f" {record.grid_point}"))
        rows.append([at, " ", tag("code", record.text)])
    return _listed("ol", rows, len(prints), "pd-prints")


def _listed(name: str, rows: Sequence[Child], count: int, class_: str | None = None) -> Markup:
    """A list of the first rows, which says how many more there are; nothing if there are none."""
    items = [tag("li", row) for row in rows]
    if count > len(rows):
        items.append(tag("li", f"{count - len(rows):,} more", class_="pd-more"))
    return tag(name, items, class_=class_) if rows else Markup()
