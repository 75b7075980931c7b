"""Overview: the verdict, where cycles go, what would save some, and all kernels in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pallas_debug.findings.facts import line_text
from pallas_debug.profile.stats import Stats
from pallas_debug.render import plural
from pallas_debug.report import words
from pallas_debug.report.collect import Contents, ReportedKernel
from pallas_debug.report.markup import Child, Markup, join, tag
from pallas_debug.report.parts.advice import advice_list, listed
from pallas_debug.report.parts.common import mark, measured, table

StatsByLabel = Mapping[str, Stats]
"""Statistics of a kernel by the label of a target, where its schedule was kept."""

COLOURS = 12
"""Colours of the parts of bars; with more kernels, they repeat."""

MAX_PROPOSALS = 12
"""Maximum number of proposals listed over all kernels."""


def verdict(contents: Contents) -> Markup:
    """One sentence: what does not compile, what was found, and what was not judged."""
    kernels = contents.kernels
    if not kernels and not contents.elsewhere:
        return tag("p", "There are no kernels in this directory.", class_="pd-verdict")
    failed: dict[str, int] = {}
    for kernel in kernels:
        for target in kernel.targets:
            if not target.is_old and not target.is_ok:
                failed[target.label] = failed.get(target.label, 0) + 1
    findings = [*contents.elsewhere, *(f for kernel in kernels for f in kernel.records.findings)]
    certain = sum(finding.counts for finding in findings)
    unjudged = sum(not kernel.records.judged and not kernel.records.findings for kernel in kernels)
    parts: list[Child] = []
    for count in dict.fromkeys(failed.values()):
        on = _listed([label for label, n in failed.items() if n == count])
        verb = "does not compile" if count == 1 else "do not compile"
        parts.append(mark("bad", f"{count} of {plural(len(kernels), 'kernel')} {verb} for {on}"))
    if kernels and not failed:
        targets = [t.label for kernel in kernels for t in kernel.targets if not t.is_old]
        on = f" for {_listed(dict.fromkeys(targets))}" if targets else ""
        parts.append(mark("ok", f"{plural(len(kernels), 'kernel')} compiled{on}"))
    if certain:
        parts.append(mark("bad", plural(certain, "finding")))
    if len(findings) > certain:
        parts.append(mark("warn", plural(len(findings) - certain, "possible finding")))
    if kernels and not findings and unjudged < len(kernels):
        parts.append(mark("ok", "no findings"))
    if unjudged:
        parts.append(mark("none", f"{unjudged} not judged"))
    if contents.gone:
        parts.append(mark("none", f"{', '.join(contents.gone)} only in the old dump"))
    return tag("ul", [tag("li", part) for part in parts], class_="pd-verdict")


def _listed(names: Iterable[str]) -> str:
    """`v5e`, `v5e and v6e`, `v4, v5e and v6e`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def shares(contents: Contents, stats: Sequence[StatsByLabel]) -> Markup:
    """For each target a bar of its cycles, in which each kernel is as wide as its share."""
    rows = []
    for label in contents.labels:
        found = [
            (number, kernel, float(of[label].cycles.total.value or 0))
            for number, (kernel, of) in enumerate(zip(contents.kernels, stats, strict=True))
            if label in of and of[label].cycles.total.value
        ]
        if not found:
            continue
        total = sum(cycles for *_, cycles in found)
        at, parts = 0.0, []
        for number, kernel, cycles in found:
            width = cycles / total * 100
            parts.append(_slice(kernel, label, number, f"{words.number(cycles)} cycles", at, width))
            at += width
        name = f"Cycles of the kernels on {label}, each as wide as its share; the table has them"
        bar = tag("svg", parts, class_="pd-map", height="26", role="img", aria_label=name)
        rows.append(tag("li", tag("b", label), bar, tag("span", f"{words.number(total)} cycles")))
    return tag("ul", rows, class_="pd-shares") if rows else Markup()


def _slice(
    kernel: ReportedKernel, label: str, number: int, about: str, at: float, width: float
) -> Markup:
    """A kernel's part of a bar.

    Widths are percentages, so that names keep their size on a narrow screen. It is an `svg` of its
    own, which clips its name.
    """
    inner = tag(
        "svg",
        tag("title", f"{kernel.name}: {about}"),
        tag("rect", width="100%", height="26"),
        tag("text", kernel.name, x="4", y="17") if width > 9 else None,
        x=f"{at:.3f}%",
        width=f"{max(width, 0.05):.3f}%",
        height="26",
        class_=f"pd-slice pd-slice-{number % COLOURS}",
    )
    # The table has the same links, which the keyboard reaches.
    target = [target.label for target in kernel.targets].index(label)
    return tag("a", inner, href=f"#{kernel.id}/t{target}", tabindex="-1")


def proposals(contents: Contents, stats: Sequence[StatsByLabel]) -> Markup:
    """What would save cycles, over all kernels; what saves most comes first."""
    found = sorted(
        (
            (-piece.what_if.saved, number, at, piece)
            for number, (kernel, of) in enumerate(zip(contents.kernels, stats, strict=True))
            for at, target in enumerate(kernel.targets)
            if target.label in of and not target.is_old
            for piece in of[target.label].advice
        ),
        key=lambda item: item[:3],
    )
    items = []
    for _, number, at, piece in found[:MAX_PROPOSALS]:
        kernel = contents.kernels[number]
        name = tag("a", kernel.name, href=f"#{kernel.id}/t{at}")
        items += advice_list([piece], kernel.link, [name, f" on {kernel.targets[at].label}: "])
    more = len(found) - len(items)
    rest = tag("p", f"{more} more are with their kernels.", class_="pd-more") if more > 0 else None
    return tag("div", listed(items), rest) if items else Markup()


def matrix(contents: Contents, stats: Sequence[StatsByLabel]) -> Markup:
    """Kernels × targets."""
    names = Counter(kernel.name for kernel in contents.kernels)
    most = {
        label: max((of[label].cycles.total.value or 0 for of in stats if label in of), default=0)
        for label in contents.labels
    }
    rows = [
        [
            _name(kernel, is_unique=names[kernel.name] == 1),
            _grid(kernel),
            _findings(kernel),
            *(_cell(kernel, label, of.get(label), largest) for label, largest in most.items()),
        ]
        for kernel, of in zip(contents.kernels, stats, strict=True)
    ]
    return table(
        "Kernels and the targets that they were compiled for",
        ["kernel", "grid", "findings", *contents.labels],
        rows,
        class_="pd-matrix pd-stacks",
    )


def _name(kernel: ReportedKernel, *, is_unique: bool) -> Child:
    of = kernel.stored.kernel
    source = of.source if of is not None else None
    below = line_text(source) if source is not None else kernel.stored.name
    if not is_unique and source is not None:
        below += f" · {kernel.stored.name}"
    return [
        tag("a", kernel.name, href=f"#{kernel.id}"),
        tag("span", below, class_="pd-sub", title=source.file if source else None),
        tag("span", mark("bad", "unreadable"), class_="pd-sub") if of is None else None,
    ]


def _grid(kernel: ReportedKernel) -> str:
    of = kernel.stored.kernel
    if of is None:
        return words.MISSING
    return words.dimensions(of.grid) if of.grid else "none"


def _findings(kernel: ReportedKernel) -> Markup:
    count = len(kernel.records.findings)
    if count:
        return mark("bad", plural(count, "finding"))
    if not kernel.records.judged:
        return mark("none", "not judged")
    judged = f"judged by {', '.join(kernel.records.judged)}"
    if any(gap.is_partial and gap.engine in kernel.records.judged for gap in kernel.records.gaps):
        judged += ", in part"
    return join([mark("ok", "none"), tag("span", judged, class_="pd-sub")])


def _cell(kernel: ReportedKernel, label: str, stats: Stats | None, largest: float) -> Child:
    target = kernel.target(label)
    if target is None:
        return mark("none", "not compiled")
    made = target.stored.compilation
    bar: Child = None
    if made is None:
        state, below = mark("bad", "unreadable"), target.stored.problem or ""
    elif made.failure is not None:
        state, below = mark("bad", made.failure.stage), made.failure.headline
    else:
        state = mark("ok" if made.ok else "bad", made.status)
        below = ""
        if stats is not None and stats.bundles.is_known:
            cycles = stats.cycles.total
            if cycles.value and largest:
                bar = measured(cycles.value / largest, f"{words.number(cycles.value)} cycles")
            below = f"{cycles.formula} cycles · " if cycles.formula else ""
            below += f"{words.number(stats.bundles.value)} bundles"
            spills = int(stats.spills.value or 0)
            below += f" · {plural(spills, 'spill')}" if spills else ""
    short = below if len(below) <= 90 else f"{below[:89]}…"
    href = f"#{kernel.id}/t{kernel.targets.index(target)}"
    return [
        tag("span", tag("a", state, href=href), bar, class_="pd-state"),
        tag("span", short, class_="pd-sub", title=below[:1000]),
    ]
