"""Figures of a schedule: cycles, bundles, memory, and the lines that cost most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.profile.bottleneck import CycleShare
from pallas_debug.profile.comparison import Texts
from pallas_debug.profile.cycles import CycleEstimate
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.lines import LineCost
from pallas_debug.profile.stats import Stats
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import mark, measured, place, table
from pallas_debug.report.parts.findings import Link, nowhere

MAX_LINES = 15
"""Maximum number of Python lines listed by cost; the source shows all."""


def figure(value: Figure) -> Markup:
    """A figure with its unit; what it means, or why it is unknown, is the tooltip."""
    return tag("span", shown(value), title=value.note or None, class_="pd-value")


def shown(value: Figure) -> str:
    """A figure with its unit, or its formula."""
    if value.value is None:
        return value.formula or words.MISSING
    return words.size(int(value.value)) if value.unit == "bytes" else words.number(value.value)


def tiles(stats: Stats) -> Markup:
    """The figures that matter most."""
    cycles, memory = stats.cycles, stats.memory
    rows: list[tuple[str, Child, str]] = [
        ("cycles", figure(replace(cycles.total, unit="")), _beside(cycles)),
        ("bundles", figure(stats.bundles), _and(stats.empty_bundles, "empty")),
        ("spills", figure(stats.spills), _and(stats.fills, "fills")),
        ("VMEM", figure(memory.vmem), _may_use(memory.limit)),
        ("code", figure(stats.code_size), ""),
        ("grid steps", figure(cycles.steps), _unknown(cycles.steps)),
    ]
    items = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", value, tag("span", below, class_="pd-sub") if below else None),
        )
        for name, value, below in rows
    ]
    return tag("dl", items, class_="pd-figures")


def _beside(cycles: CycleEstimate) -> str:
    """Details beside the cycles: waits, minimum, and libtpu's estimate.

    For a formula, the meaning of its unknowns.
    """
    own, least = cycles.compiler, cycles.least
    parts = [_unknown(cycles.total)] if not cycles.total.is_known else []
    if cycles.total.is_known and cycles.waiting.value:
        parts.append(f"{words.number(cycles.waiting.value)} of them waiting for copies")
    if least.is_known and least.value != cycles.total.value:
        parts.append(f"at least {words.number(least.value)} without what depends on data")
    if own.is_known and cycles.total.is_known:
        parts.append(f"{words.number(own.value)} by libtpu’s estimate")
    if cycles.time.is_known:
        parts.append(f"{cycles.time} ms {cycles.time.note}")
    return "; ".join(filter(None, parts))


def _unknown(value: Figure) -> str:
    """Quantities on which a formula depends."""
    return value.note if value.formula else ""


def _may_use(limit: Figure) -> str:
    return f"of {shown(limit)} that it may use" if limit.value else ""


def _and(value: Figure, what: str) -> str:
    return f"{shown(value)} {what}" if value.is_known else ""


def bottleneck(parts: Sequence[CycleShare]) -> Markup:
    """Where the cycles go."""
    return tag("div", [tag("p", str(part)) for part in parts]) if parts else Markup()


def lines_table(stats: Stats, link: Link = nowhere, text: Texts = lambda line: line.text) -> Markup:
    """Python lines by cost."""
    if not stats.lines:
        return Markup()
    lines = stats.lines[:MAX_LINES]
    more = len(stats.lines) - len(lines)
    where = "" if link is nowhere else " in the source"
    caption = "Python lines by share of the cycles, calls included" + (
        f"; {more} more{where}" if more else ""
    )
    return table(
        caption,
        ["line", "source", "bundles", "share", "own", "units", "spills", "copies"],
        [_line(cost, link, text(cost.source)) for cost in lines],
        numeric=(2, 3, 4, 6, 7),
        prose=(1, 5),
        class_="pd-costs",
    )


def _line(cost: LineCost, link: Link, text: str | None) -> list[Child]:
    busiest = ", ".join(f"{name} {count:,}" for name, count in list(cost.units.items())[:3])
    return [
        place(cost.source, link(cost.source)),
        tag("code", (text or "").strip() or words.MISSING),
        words.number(cost.bundles),
        measured(cost.share, words.percent(cost.share)),
        words.percent(cost.own_share),
        busiest or words.MISSING,
        words.number(cost.spills),
        words.number(cost.copies),
    ]


def notes(stats: Stats, problems: Sequence[str] = ()) -> Markup:
    """Problems met in reading the figures."""
    rows = [tag("li", mark("warn", text)) for text in (*problems, *stats.problems)]
    return tag("ul", rows, class_="pd-notes") if rows else Markup()
