"""Text of a kernel's statistics, as `stats` prints and `browse` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pallas_debug import quantities
from pallas_debug.findings.facts import line_text
from pallas_debug.render import one_line, plural_of

if TYPE_CHECKING:
    from pallas_debug.profile.cost_estimate import CountedCost
    from pallas_debug.profile.cycles import CycleEstimate
    from pallas_debug.profile.figures import Figure
    from pallas_debug.profile.stats import Stats
    from pallas_debug.profile.whatif import WhatIf

SHOWN = 12
"""Maximum number of Python lines printed without `--all`."""

NAMES = 30
"""Columns of a name in a table; a longer one is cut."""

LEGEND = "c: stated by libtpu, d: derived from what it wrote, a: rests on an assumption, -: unknown"

_BOUND = {
    "memory": "memory",
    "compute": "compute",
    "latency": "latency: waiting for copies takes longer than computing or moving their bytes",
}


def marked(figure: Figure, *, percent: bool = False) -> str:
    """Format a figure with the letter of its origin; `-` if it is unavailable."""
    if figure.value is None:
        return f"{figure.formula} {figure.origin[0]}" if figure.formula else "-"
    text = quantities.percent(figure.value, 1) if percent else str(figure)
    return f"{text} {figure.origin[0]}"


def lines_of(stats: Stats) -> Iterator[str]:
    """Yield all lines but those of the cheaper lines of source."""
    return (line for lines, _ in sections(stats, whole=False) for line in lines)


def change_text(changed: WhatIf) -> str:
    """Say what a change costs, and on what that rests."""
    now, then = changed.now.value or 0, changed.cycles.value or 0
    share = f", {quantities.percent(then / now)} of them" if now else ""
    least = "at least " if changed.is_bound else ""
    steps = "" if changed.is_bound else f"; {plural_of(changed.steps, 'step')}"
    vmem = ""
    if changed.vmem is not None:
        vmem = f", {quantities.size_text(changed.vmem)} of VMEM without spills"
    names = ", ".join(changed.assumed)
    assumed = f"; the block of {names} is assumed to change at every step" if names else ""
    if any(part in changed.change for part in ("order=", "=resident", ".bits=")):
        assumed += "; whether the kernel then computes the same is not checked"
    return (
        f"with {changed.change}: {least}{marked(changed.cycles)} cycles instead of "
        f"{marked(changed.now)}{share}{steps}{vmem}{assumed}"
    )


def sections(stats: Stats, *, whole: bool) -> Iterator[tuple[Iterable[str], int]]:
    """Yield parts: lines, and the column at which a line continues on a narrow terminal."""
    libtpu = stats.versions.get("libtpu")
    yield [f"{stats.kernel} on {stats.target}" + (f", libtpu {libtpu}" if libtpu else "")], 4
    yield [f"  {one_line(text)}" for text in stats.bottleneck], 4
    yield [f"  {name:12} {value}".rstrip() for name, value in facts(stats)], 15
    yield _units(stats), 37
    yield _loops(stats), 4
    yield _memory(stats), 17
    yield source_lines(stats, whole=whole), 4
    yield _advice(stats), 8
    yield _cost_estimate(stats.cost_estimate), 4
    yield [f"assumed: {assumption}" for assumption in stats.cycles.assumptions], 4
    yield [f"problem: {problem}" for problem in stats.problems], 4
    yield [LEGEND], 4


def facts(stats: Stats) -> Iterator[tuple[str, str]]:
    cycles, traffic = stats.cycles, stats.traffic
    yield "code", f"{marked(stats.code_size)} bytes"
    if stats.is_sparse:
        yield "grid steps", marked(cycles.steps)
        return
    yield "bundles", f"{marked(stats.bundles)}, {marked(stats.empty_bundles)} of them empty"
    yield "spills", f"{marked(stats.spills)} stores, {marked(stats.fills)} loads"
    yield (
        "cycles",
        f"{marked(cycles.total)}: {marked(cycles.compute)} computing, "
        f"{marked(cycles.waiting)} waiting for copies",
    )
    if cycles.assumed:
        yield "", "with " + ", ".join(f"{name} = {n:,}" for name, n in cycles.assumed.items())
    if cycles.total.formula and cycles.total.note:
        yield "", cycles.total.note
    if cycles.least.is_known and cycles.least != cycles.total:
        yield "  at least", f"{marked(cycles.least)}, if no region that depends on data runs"
    yield "  libtpu", marked(cycles.compiler)
    if cycles.time.is_known:
        yield "  time", f"{marked(cycles.time)} ms {cycles.time.note}"
    yield "grid steps", marked(cycles.steps) + _shared(cycles)
    yield "  compute", f"{marked(traffic.compute_per_step)} cycles per step"
    yield (
        "  copies",
        f"{marked(traffic.copies_per_step)} cycles per step: "
        f"{marked(traffic.read_per_step)} bytes read, {marked(traffic.written_per_step)} written",
    )
    if traffic.resident:
        yield (
            "  in VMEM",
            f"{', '.join(traffic.resident)}: placed in VMEM by XLA, not copied from or to HBM",
        )
    yield "bound by", _BOUND.get(traffic.bound or "", "-")
    yield (
        "roofline",
        f"{marked(traffic.attained, percent=True)} of the published peaks"
        + (f" ({traffic.source})" if traffic.source else ""),
    )


def _shared(cycles: CycleEstimate) -> str:
    if cycles.core_steps.value in (None, cycles.steps.value):
        return ""
    return f", {marked(cycles.core_steps)} on each core: all figures are those of one core"


def _units(stats: Stats) -> Iterator[str]:
    if not stats.units:
        return
    yield f"{'unit':16} {'capacity':>8} {'used':>9}"
    for unit in stats.units:
        used = marked(unit.share, percent=True)
        meaning = f"  {unit.meaning}" if unit.meaning else ""
        yield f"  {unit.name:14} {unit.capacity!s:>8} {used:>9}{meaning}"


def _loops(stats: Stats) -> Iterator[str]:
    if stats.loops:
        yield f"{'loop':16} {'bundles':>9} {'executed':>12} {'share':>9} {'spills':>7} {'fills':>6}"
    for loop in stats.loops:
        name = f"{'  ' * loop.depth}{loop.start:#x}"
        yield (
            f"  {name:14} {loop.bundles!s:>9} {marked(loop.executed):>12} "
            f"{marked(loop.share, percent=True):>9} {loop.spills:7,} {loop.fills:6,}"
        )


def _memory(stats: Stats) -> Iterator[str]:
    memory = stats.memory
    if stats.is_sparse:
        return
    yield (
        f"memory           VMEM {marked(memory.vmem)} of the {marked(memory.limit)} bytes that "
        f"it may use, SMEM {marked(memory.smem)}"
    )
    if memory.is_limit_raisable:
        most = marked(memory.capacity)
        yield f"                 vmem_limit_bytes can raise that limit to {most} bytes"
    for use in memory.uses:
        buffers = f" in {use.buffers} buffers" if use.buffers and use.buffers > 1 else ""
        yield f"  {one_line(use.name):14.40} {marked(use.size):>14} bytes of {use.space}{buffers}"


def _advice(stats: Stats) -> Iterator[str]:
    if stats.advice:
        yield "advice"
    for advice in stats.advice:
        place = f" at {line_text(advice.source)}" if advice.source is not None else ""
        yield f"  {one_line(f'{advice.kind}{place}: {advice.message}')}"
        if advice.source is not None and advice.source.text:
            yield f"      {one_line(advice.source.text.strip())}"
        yield f"      {one_line(f'remedy: {advice.remedy}')}"
        yield f"      {one_line(change_text(advice.what_if))}"


def _cost_estimate(counted: CountedCost | None) -> Iterator[str]:
    """Yield the estimate to declare; nothing if the kernel declares one, or nothing is known."""
    if counted is None or not str(counted):
        return
    yield "cost estimate    the kernel declares none; what was counted makes this one:"
    yield f"  cost_estimate={counted}"
    for name, reason in counted.missing.items():
        yield f"  without {name}: {reason}"


def _cut(name: str) -> str:
    return name if len(name) <= NAMES else f"{name[: NAMES - 1]}…"


def source_lines(stats: Stats, *, whole: bool) -> Iterator[str]:
    shown = stats.lines if whole else stats.lines[:SHOWN]
    if not shown:
        return
    yield f"{'line':32} {'share':>7} {'own':>7} {'bundles':>8} {'spills':>7} {'fills':>6} copies"
    for cost in shown:
        name = one_line(line_text(cost.source))
        if len(name) > NAMES - 2:  # the number matters more than the start of the file's name
            name = name if len(name) <= NAMES else f"…{name[1 - NAMES :]}"
        elif cost.source.function:
            name += f" {cost.source.function}"
        yield (
            f"  {_cut(one_line(name)):{NAMES}} {cost.share:7.1%} {cost.own_share:7.1%} "
            f"{cost.bundles:8,} {cost.spills:7,} {cost.fills:6,} {cost.copies:6,}"
        )
    more = len(stats.lines) - len(shown)
    if more > 0:
        yield f"  … {more} more with --all"
