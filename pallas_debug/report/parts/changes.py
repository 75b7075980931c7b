"""Costs of two targets side by side, or of an old and a new dump; the first is `−`."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.profile.comparison import StatsComparison, compare_stats
from pallas_debug.profile.figures import Figure
from pallas_debug.report.collect import ReportedKernel, ReportedTarget
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import change, table
from pallas_debug.report.parts.figures import shown
from pallas_debug.report.parts.overview import StatsByLabel


def changes_table(kernels: Iterable[tuple[ReportedKernel, StatsByLabel]]) -> Markup:
    """Cycles, bundles, spills and bytes of kernels, the largest change of cycles first.

    Nothing if there are no two targets of a kernel to compare.
    """
    found = [
        (comparison, kernel, a, b)
        for kernel, stats in kernels
        for a, b, comparison in _compared(kernel, stats)
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
                _both(old.traffic.written, new.traffic.written),
            ]
        )
    return table(
        "The first is −, the second +; the largest change comes first",
        [
            "kernel",
            "cycles",
            "change",
            "bundles",
            "spills",
            "copied from HBM",
            "copied to HBM",
        ],
        rows,
        numeric=(1, 2, 3, 4, 5, 6),
        class_="pd-stacks",
    )


def _compared(
    kernel: ReportedKernel, stats: StatsByLabel
) -> list[tuple[ReportedTarget, ReportedTarget, StatsComparison]]:
    return [
        (a, b, compare_stats(stats[a.label], stats[b.label]))
        for a, b in kernel.pairs
        if a.label in stats and b.label in stats
    ]


def _both(before: Figure, after: Figure) -> str:
    """`12,287 → 15,471`, or the one value of both."""
    old, new = shown(before), shown(after)
    return new if old == new else f"{old} → {new}"
