"""Costs of two targets side by side, or of an old and a new dump; the first is `−`."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug import quantities
from pallas_debug.profile.changes.comparison import FigureChange, StatsComparison, compare_stats
from pallas_debug.profile.figures import Figure
from pallas_debug.report import words
from pallas_debug.report.collect import Contents, ReportedKernel, ReportedTarget
from pallas_debug.report.markup import Child, Markup, join, tag
from pallas_debug.report.parts.common import change, place, section, table
from pallas_debug.report.parts.overview import StatsByLabel

COSTS = ("cycles", "bundles", "spills", "copied from HBM", "copied to HBM")
"""Figures that come first."""

MAX_ROWS = 15
"""Maximum number of lines whose cycles changed."""


def changes_part(kernel: ReportedKernel, stats: StatsByLabel) -> Markup:
    """Figures and lines that differ, for each pair of targets; nothing if there is none."""
    return join(_pair(kernel, *pair) for pair in _compared(kernel, stats))


def changes_table(contents: Contents, stats: Sequence[StatsByLabel]) -> Markup:
    """Cycles, bundles, spills and bytes of all kernels, the largest change of cycles first."""
    found = [
        (comparison, kernel, a, b)
        for kernel, of in zip(contents.kernels, stats, strict=True)
        for a, b, comparison in _compared(kernel, of)
    ]
    if not found:
        return Markup()
    found.sort(key=lambda item: item[0].rank)
    rows: list[list[Child]] = []
    for comparison, kernel, a, b in found:
        at = kernel.targets.index(b)
        old, new = comparison.old, comparison.new
        rows.append(
            [
                [
                    tag("a", kernel.name, href=f"#{kernel.id}/t{at}"),
                    tag("span", f"− {a.label}  + {b.label}", class_="pd-sub"),
                ],
                _both(comparison.cycles.before, comparison.cycles.after),
                change(comparison.cycles.change),
                _both(old.bundles, new.bundles),
                _both(old.spills, new.spills),
                _both(old.traffic.read, new.traffic.read),
            ]
        )
    return table(
        "The first is −, the second +; the largest change comes first",
        ["kernel", "cycles", "change", "bundles", "spills", "copied from HBM"],
        rows,
        numeric=(1, 2, 3, 4, 5),
        class_="pd-stacks",
    )


def _compared(
    kernel: ReportedKernel, stats: StatsByLabel
) -> list[tuple[ReportedTarget, ReportedTarget, StatsComparison]]:
    return [
        (
            a,
            b,
            compare_stats(
                stats[a.label],
                stats[b.label],
                old_texts=a.kernel.line_text,
                new_texts=b.kernel.line_text,
            ),
        )
        for a, b in kernel.pairs
        if a.label in stats and b.label in stats
    ]


def _pair(
    kernel: ReportedKernel, a: ReportedTarget, b: ReportedTarget, comparison: StatsComparison
) -> Markup:
    columns = [f"− {a.label}", f"+ {b.label}", "change"]
    figures = [
        [
            f.name,
            _text(f, f.before),
            _text(f, f.after),
            change(f.change, is_cost=not f.name.startswith("share")),
        ]
        for f in sorted(comparison.figures, key=_rank)
    ]
    lines: list[list[Child]] = [
        [
            place(line.source, kernel.link(line.source)),
            tag("code", line.text or words.MISSING),
            words.number(None if line.before is None else round(line.before)),
            words.number(None if line.after is None else round(line.after)),
            f"{line.difference:+,.0f}".replace("-", "−"),
        ]
        for line in comparison.lines[:MAX_ROWS]
    ]
    nothing = tag("p", "No figure and no line changed.", class_="pd-dim")
    versions = ", ".join(f"{name} {old} → {new}" for name, old, new in comparison.versions)
    return section(
        f"− {a.label}  + {b.label}",
        tag("p", versions, class_="pd-dim") if versions else None,
        nothing if comparison.is_same else None,
        table(
            "Figures that differ",
            ["figure", *columns],
            figures,
            numeric=(1, 2, 3),
            class_="pd-changes",
        )
        if figures
        else None,
        table(
            "Cycles of lines, without calls; the largest change comes first",
            ["line", "source", *columns],
            lines,
            numeric=(2, 3, 4),
            prose=(1,),
            class_="pd-costs",
        )
        if lines
        else None,
        level=4,
    )


def _rank(of: FigureChange) -> int:
    """Costs come first, and the use of units last; each by change."""
    return 0 if of.name in COSTS else 2 if of.name.startswith("share") else 1


def _both(before: Figure, after: Figure) -> str:
    """`12,287 → 15,471`, or the one value of both."""
    old, new = _shown(before), _shown(after)
    return new if old == new else f"{old} → {new}"


def _shown(figure: Figure) -> str:
    if figure.unit == "bytes" and figure.value is not None:
        return words.size(int(figure.value))
    return figure.formula or words.number(figure.value)


def _text(of: FigureChange, figure: Figure) -> str:
    if of.name.startswith("share") and figure.value is not None:
        return quantities.percent(figure.value, 1)
    return _shown(figure)
