"""Figures of a schedule: cycles, units, loops, lines; each says where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.profile.bottleneck import CycleShare
from pallas_debug.profile.changes.comparison import Texts
from pallas_debug.profile.cycles import CycleEstimate
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.lines import LineCost
from pallas_debug.profile.stats import Stats
from pallas_debug.profile.traffic import Traffic
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import facts, mark, measured, place, section, table
from pallas_debug.report.parts.findings import Link, nowhere

MAX_LINES = 15
"""Maximum number of Python lines listed by cost; the source shows all."""

_ORIGINS = {
    "compiler": "stated by the compiler",
    "derived": "derived from what the compiler wrote",
    "assumed": "rests on an assumption",
}


def figure(value: Figure) -> Markup:
    """A figure with its unit; its basis is the tooltip, and named beside it."""
    shown = _with_unit(value) if value.is_known else value.formula or words.MISSING
    about = value.note if not value.is_known else _ORIGINS[value.origin]
    title = f"{about}: {value.note}" if value.is_known and value.note else about
    origin = tag("span", value.origin, class_="pd-origin") if value.is_known else None
    return tag("span", tag("span", shown, class_="pd-value"), origin, title=title)


def _with_unit(value: Figure) -> str:
    amount = value.value or 0
    if value.unit == "bytes":
        return words.size(int(amount))
    if value.unit in ("seconds", "s"):
        return words.seconds(amount)
    if value.unit == "":
        return words.large(amount)
    return f"{words.large(amount)} {value.unit}"


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
    return f"of {words.size(int(limit.value))} that it may use" if limit.value else ""


def _and(value: Figure, what: str) -> str:
    if not value.is_known:
        return ""
    shown = words.size(int(value.value or 0)) if value.unit == "bytes" else value.value
    return f"{shown if isinstance(shown, str) else words.number(shown)} {what}"


def bottleneck(parts: Sequence[CycleShare]) -> Markup:
    """Where the cycles go."""
    return tag("div", [tag("p", str(part)) for part in parts]) if parts else Markup()


def units_table(stats: Stats) -> Markup:
    """Share of each unit's capacity in use."""
    if not stats.units:
        return Markup()
    rows: list[list[Child]] = [
        [
            tag("code", unit.name),
            words.number(unit.capacity.value),
            _share(unit.share),
            tag("span", unit.meaning or words.MISSING, class_="pd-dim"),
        ]
        for unit in stats.units
    ]
    return table(
        "Share of each unit’s capacity in use",
        ["unit", "capacity", "used", "counts"],
        rows,
        numeric=(1, 2),
        prose=(3,),
    )


def _share(value: Figure) -> Child:
    if not value.is_known:
        return words.MISSING
    share = float(value.value or 0)
    return measured(share, words.percent(share))


def traffic_facts(traffic: Traffic) -> Markup:
    """Bytes copied against work done, and the roofline of the published peaks."""
    bound = {
        "compute": "computation: a step computes longer than its copies take",
        "memory": "memory: the copies of a step take longer than its computation",
        "latency": "latency: waiting for copies takes longer than computing or moving their bytes",
    }
    rows: list[tuple[str, Child]] = [
        (name, figure(value) if value.is_known or value.formula else None)
        for name, value in (
            ("read from HBM", traffic.read),
            ("written to HBM", traffic.written),
            ("read in a grid step", traffic.read_per_step),
            ("written in a grid step", traffic.written_per_step),
            ("matrix operations", traffic.flops),
            ("vector operations", traffic.vector_operations),
            ("computing in a grid step", traffic.compute_per_step),
            ("copying in a grid step", traffic.copies_per_step),
            ("time by the roofline", traffic.roofline),
        )
    ]
    if traffic.attained.is_known:
        share = words.percent(float(traffic.attained.value or 0))
        rows.append(("share of the roofline", tag("span", share, title=traffic.attained.note)))
    if traffic.resident:
        rows.append(
            ("placed in VMEM by XLA, not copied from or to HBM", ", ".join(traffic.resident))
        )
    rows.append(("limited by", bound.get(traffic.bound or "", traffic.bound)))
    rows.append(("published peaks", traffic.source if any(value for _, value in rows) else None))
    return facts(rows)


def lines_table(stats: Stats, link: Link = nowhere, text: Texts = lambda line: line.text) -> Markup:
    """Python lines by cost."""
    if not stats.lines:
        return Markup()
    shown = stats.lines[:MAX_LINES]
    more = len(stats.lines) - len(shown)
    where = "" if link is nowhere else " in the source"
    caption = "Python lines by share of the cycles, calls included" + (
        f"; {more} more{where}" if more else ""
    )
    return table(
        caption,
        ["line", "source", "bundles", "share", "own", "units", "spills", "copies"],
        [_line(cost, link, text(cost.source)) for cost in shown],
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
    """Problems met in reading the figures, and assumptions behind them."""
    rows = [tag("li", mark("warn", text)) for text in (*problems, *stats.problems)]
    rows += [tag("li", f"assumed: {text}") for text in stats.cycles.assumptions[:20]]
    more = len(stats.cycles.assumptions) - 20
    if more > 0:
        rows.append(tag("li", f"{more} more assumptions of this kind"))
    covered = stats.coverage
    if covered.bundles:
        share = words.percent(covered.traced / covered.bundles)
        rows.append(
            tag("li", f"{share} of the bundles with vector or matrix work come from a Python line")
        )
    return tag("ul", rows, class_="pd-notes") if rows else Markup()


def summary(stats: Stats, text: Texts = lambda line: line.text) -> Markup:
    """All figures, for a notebook; `text` returns that of a line."""
    return tag(
        "div",
        tiles(stats),
        section("Units", units_table(stats), level=4),
        section("Lines", lines_table(stats, text=text), level=4),
        notes(stats),
    )
