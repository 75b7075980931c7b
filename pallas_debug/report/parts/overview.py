"""Overview: kernels, targets and findings in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallas_debug.findings.facts import line_text
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.stats import Stats
from pallas_debug.render import plural, plural_of
from pallas_debug.report import words
from pallas_debug.report.collect import Contents, ReportedKernel
from pallas_debug.report.markup import Child, Markup, join, tag
from pallas_debug.report.parts.common import mark
from pallas_debug.store import StoredCompilation


def tiles(contents: Contents) -> Markup:
    """The most important counts, the bad ones linked to the page's list of findings."""
    compilations = [c for kernel in contents.kernels for c in kernel.compilations]
    failed = sum(1 for c in compilations if c.compilation is None or not c.compilation.ok)
    findings = sum(len(kernel.findings) for kernel in contents.kernels) + len(contents.elsewhere)
    counts = {
        "kernel": len(contents.kernels),
        "target": len(contents.targets),
        "failed compilation": failed,
        "finding": findings,
        "recorded run": contents.runs,
    }
    items = []
    for name, count in counts.items():
        is_bad = count > 0 and name in ("failed compilation", "finding")
        label = tag("span", name if count == 1 else f"{name}s")
        content = [tag("b", mark("bad", count) if is_bad else count), " ", label]
        items.append(tag("li", tag("a", content, href="#overview/findings") if is_bad else content))
    return tag("ul", items, class_="pd-tiles")


@dataclass(frozen=True, kw_only=True)
class OverviewFigures:
    """Cell of the table about a schedule."""

    bundles: Figure
    cycles: Figure
    spills: Figure
    advice: int

    @classmethod
    def of(cls, stats: Stats) -> OverviewFigures:
        return cls(
            bundles=stats.bundles,
            cycles=stats.cycles.total,
            spills=stats.spills,
            advice=len(stats.advice),
        )


FiguresByTarget = Mapping[str, OverviewFigures]
"""Figures of a kernel by target, where its schedule was kept."""


def matrix(
    kernels: Sequence[ReportedKernel],
    targets: Sequence[str],
    stats: Sequence[FiguresByTarget],
    *,
    linked: bool,
) -> Markup:
    """Kernels × targets.

    Args:
      stats: for each kernel.
      linked: whether to link to the sections of a page.
    """
    columns = ["kernel", "grid", "findings", *targets]
    head = [tag("th", name, scope="col", role="columnheader") for name in columns]
    names = Counter(kernel.name for kernel in kernels)
    rows = [
        _row(kernel, targets, figures, linked=linked, is_unique=names[kernel.name] == 1)
        for kernel, figures in zip(kernels, stats, strict=True)
    ]
    return tag(
        "table",
        tag("caption", "Kernels and the targets that they were compiled for"),
        tag("thead", tag("tr", head, role="row"), role="rowgroup"),
        tag("tbody", rows, role="rowgroup"),
        class_="pd-table pd-matrix",
        role="grid" if linked else "table",
    )


def _row(
    kernel: ReportedKernel,
    targets: Sequence[str],
    stats: FiguresByTarget,
    *,
    linked: bool,
    is_unique: bool,
) -> Markup:
    role = "gridcell" if linked else "cell"
    name: Child = kernel.name
    if linked:
        name = tag("a", kernel.name, href=f"#{kernel.id}")
    of = kernel.stored.kernel
    source = of.source if of is not None else None
    below = line_text(source) if source is not None else kernel.stored.name
    if not is_unique and source is not None:
        below += f" · {kernel.stored.name}"
    cells = [
        tag(
            "th",
            name,
            tag("span", below, class_="pd-sub", title=source.file if source else None),
            tag("span", mark("bad", "unreadable"), class_="pd-sub") if of is None else None,
            scope="row",
            role="rowheader",
        ),
        tag("td", _grid(kernel), role=role, class_="pd-dim", data_label="grid"),
        tag("td", _findings(kernel), role=role, data_label="findings"),
    ]
    for target in targets:
        stored = kernel.compilation(target)
        at = kernel.compilations.index(stored) if stored is not None else 0
        href = f"#{kernel.id}/t{at}" if linked and stored is not None else None
        cells.append(
            tag("td", _cell(stored, stats.get(target), href), role=role, data_label=target)
        )
    search = " ".join((kernel.name, kernel.stored.name, below)).lower()
    return tag("tr", cells, role="row", data_search=search)


def _grid(kernel: ReportedKernel) -> str:
    of = kernel.stored.kernel
    if of is None:
        return words.MISSING
    return words.dimensions(of.grid) if of.grid else "none"


def _findings(kernel: ReportedKernel) -> Markup:
    count = len(kernel.findings)
    if count:
        return mark("bad", plural(count, "finding"))
    if not kernel.judged:
        return mark("none", "not judged")
    judged = f"judged by {', '.join(kernel.judged)}"
    if any(gap.is_partial and gap.engine in kernel.judged for gap in kernel.gaps):
        judged += ", in part"
    return join([mark("ok", "none"), tag("span", judged, class_="pd-sub")])


def _cell(
    stored: StoredCompilation | None, stats: OverviewFigures | None, href: str | None
) -> Child:
    if stored is None:
        return mark("none", "not compiled")
    made = stored.compilation
    if made is None:
        state, below = mark("bad", "unreadable"), stored.problem or ""
    elif made.failure is not None:
        state, below = mark("bad", made.failure.stage), made.failure.headline
    else:
        state = mark("ok" if made.ok else "bad", made.status)
        below = f"{len(made.changed_passes)} of {plural(len(made.passes), 'pass')} changed"
        if made.seconds is not None:
            below += f" · {words.seconds(made.seconds)}"
        if stats is not None and stats.bundles.is_known:
            cycles = stats.cycles
            below = f"{words.number(stats.bundles.value)} bundles"
            known = words.number(cycles.value) if cycles.is_known else cycles.formula
            below += f" · {known} cycles" if known else ""
            spills = int(stats.spills.value or 0)
            below += f" · {plural_of(spills, 'spill')}" if spills else ""
            below += f" · {plural(stats.advice, 'piece')} of advice" if stats.advice else ""
    label: Child = tag("a", state, href=href) if href else state
    short = below if len(below) <= 90 else f"{below[:89]}…"
    return [label, tag("span", short, class_="pd-sub", title=below[:1000])]
