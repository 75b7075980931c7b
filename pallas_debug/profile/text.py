"""Text of a kernel's statistics, as `stats` prints and `browse` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pallas_debug import quantities
from pallas_debug.findings.facts import line_text
from pallas_debug.render import one_line, plural

if TYPE_CHECKING:
    from pallas_debug.model import SourceLine
    from pallas_debug.profile.advice import Advice
    from pallas_debug.profile.figures import Figure
    from pallas_debug.profile.stats import Stats
    from pallas_debug.profile.whatif import WhatIf

NAMES = 30
"""Columns of a name in a table; a longer one is cut."""

BAR = 20
"""Columns of the bar for all cycles."""

LEGEND = "c: stated by libtpu, d: derived from what it wrote, a: rests on an assumption, -: unknown"

Section = tuple[Iterable[str], int]
"""Lines, and the column at which a line continues on a narrow terminal."""


def lines_of(stats: Stats) -> Iterator[str]:
    """Yield all lines."""
    return (line for lines, _ in StatsText(stats).sections(whole=True) for line in lines)


@dataclass(frozen=True)
class StatsText:
    """Text of a kernel's statistics.

    Attributes:
      provenance: whether figures have the letter of their origin.
      text_of: returns the text of a Python line.
    """

    stats: Stats
    provenance: bool = False
    text_of: Callable[[SourceLine], str | None] = lambda line: line.text

    def sections(self, changed: WhatIf | None = None, *, whole: bool) -> Iterator[Section]:
        """Yield the parts of the first screen, at most 15 lines, or of everything that is known.

        Args:
          changed: a change to show instead of the advice.
        """
        stats, cycles = self.stats, self.stats.cycles
        yield [self._head()], 4
        if cycles.assumed:
            counts = ", ".join(f"{name} = {n:,}" for name, n in cycles.assumed.items())
            yield [f"  with {counts}"], 4
        if cycles.total.formula and cycles.total.note:
            yield [f"  {cycles.total.note}"], 4
        yield [f"problem: {problem}" for problem in stats.problems], 4
        yield self._shares(), 50
        yield self._hottest(), 4
        if changed is not None:
            head = f"  {self._saving(changed)} with {changed.change}"
            yield [one_line(f"{head}: {', '.join(_basis(changed))}")], 4
        for advice in () if changed is not None else stats.advice:
            yield self._advice(advice, whole=whole), 6
        if whole:
            yield [f"  {name:12} {value}".rstrip() for name, value in self._facts()], 15
            yield self._units(), 37
            yield self._loops(), 4
            yield self._memory(), 17
            yield self._lines(), 4
            yield self._cost_estimate(), 4
            yield [f"assumed: {assumption}" for assumption in cycles.assumptions], 4
        if self.provenance:
            yield [LEGEND], 4

    def mark(self, figure: Figure, *, percent: bool = False) -> str:
        """Format a figure, with the letter of its origin if letters are wanted."""
        if figure.value is None:
            text = figure.formula or ""
        else:
            text = quantities.percent(figure.value, 1) if percent else str(figure)
        return f"{text} {figure.origin[0]}" if text and self.provenance else text or "-"

    # The first screen

    def _head(self) -> str:
        stats, bound, time = self.stats, self.stats.traffic.bound, self.stats.cycles.time
        # `Figure` has milliseconds, which are too coarse for most kernels.
        in_us = replace(time, value=1000 * time.value) if time.value is not None else None
        known = [
            f"{self.mark(stats.cycles.total)} cycles" if not stats.is_sparse else "",
            f"{self.mark(in_us)} µs" if in_us is not None else "",
            f"bound by {bound}" if bound else "",
            f"{self.mark(stats.spills)} spills" if stats.spills.value else "",
        ]
        return f"{stats.kernel} on {stats.target}: {', '.join(filter(None, known))}"

    def _shares(self) -> Iterator[str]:
        for part in self.stats.bottleneck:
            bar = "█" * round(part.share * BAR)
            share = quantities.percent(part.share)
            yield f"  {part.reason:20} {share:>5} {bar:{BAR}} {one_line(part.detail)}".rstrip()

    def _hottest(self) -> Iterator[str]:
        rows = [(one_line(line_text(line.source)), line) for line in self.stats.hottest]
        names, reasons = (max(map(len, column), default=0) for column in (
            [name for name, _ in rows], [line.reason for _, line in rows],
        ))  # fmt: skip
        for name, line in rows:
            text = " ".join((self.text_of(line.source) or line.source.function or "").split())
            share = quantities.percent(line.share)
            yield f"  {name:{names}} {share:>5}  {line.reason:{reasons}}  {one_line(text)}".rstrip()

    def _advice(self, advice: Advice, *, whole: bool) -> Iterator[str]:
        place = f" ({line_text(advice.source)})" if advice.source is not None else ""
        yield one_line(f"  {self._saving(advice.what_if)}: {advice.remedy}{place}")
        if whole:
            reasons = (f"{advice.kind}: {advice.message}", *_basis(advice.what_if))
            yield one_line(f"    {'; '.join(reasons)}")

    def _saving(self, changed: WhatIf) -> str:
        now, then = (
            quantities.short(figure.value or 0)
            + (f" {figure.origin[0]}" if self.provenance else "")
            for figure in (changed.now, changed.cycles)
        )
        return f"{now} → {then} cycles{' at best' if changed.is_bound else ''}"

    # Everything

    def _facts(self) -> Iterator[tuple[str, str]]:
        stats, mark = self.stats, self.mark
        cycles, traffic = stats.cycles, stats.traffic
        yield "code", f"{mark(stats.code_size)} bytes"
        if stats.is_sparse:
            yield "grid steps", mark(cycles.steps)
            return
        yield "bundles", f"{mark(stats.bundles)}, {mark(stats.empty_bundles)} of them empty"
        yield "spills", f"{mark(stats.spills)} stores, {mark(stats.fills)} loads"
        yield (
            "cycles",
            f"{mark(cycles.total)}: {mark(cycles.compute)} computing, "
            f"{mark(cycles.waiting)} waiting for copies",
        )
        if cycles.least.is_known and cycles.least != cycles.total:
            yield "  at least", f"{mark(cycles.least)}, if no region that depends on data runs"
        yield "  libtpu", mark(cycles.compiler)
        if cycles.time.is_known:
            yield "  time", f"{mark(cycles.time)} ms {cycles.time.note}"
        cores = ""
        if cycles.core_steps.value not in (None, cycles.steps.value):
            cores = f", {mark(cycles.core_steps)} on each core: all figures are those of one core"
        yield "grid steps", mark(cycles.steps) + cores
        yield "  compute", f"{mark(traffic.compute_per_step)} cycles per step"
        yield (
            "  copies",
            f"{mark(traffic.copies_per_step)} cycles per step: "
            f"{mark(traffic.read_per_step)} bytes read, {mark(traffic.written_per_step)} written",
        )
        if traffic.resident:
            yield (
                "  in VMEM",
                f"{', '.join(traffic.resident)}: placed in VMEM by XLA, not copied from or to HBM",
            )
        yield "bound by", traffic.bound or "-"
        yield "roofline", f"{mark(traffic.attained, percent=True)} of the published peaks"

    def _units(self) -> Iterator[str]:
        if not self.stats.units:
            return
        yield f"{'unit':16} {'capacity':>8} {'used':>9}"
        for unit in self.stats.units:
            used = self.mark(unit.share, percent=True)
            meaning = f"  {unit.meaning}" if unit.meaning else ""
            yield f"  {unit.name:14} {unit.capacity!s:>8} {used:>9}{meaning}"

    def _loops(self) -> Iterator[str]:
        if self.stats.loops:
            yield (
                f"{'loop':16} {'bundles':>9} {'executed':>12} {'share':>9} {'spills':>7} "
                f"{'fills':>6}"
            )
        for loop in self.stats.loops:
            name = f"{'  ' * loop.depth}{loop.start:#x}"
            yield (
                f"  {name:14} {loop.bundles!s:>9} {self.mark(loop.executed):>12} "
                f"{self.mark(loop.share, percent=True):>9} {loop.spills:7,} {loop.fills:6,}"
            )

    def _memory(self) -> Iterator[str]:
        memory, mark = self.stats.memory, self.mark
        if self.stats.is_sparse:
            return
        yield (
            f"memory           VMEM {mark(memory.vmem)} of the {mark(memory.limit)} bytes that "
            f"it may use, SMEM {mark(memory.smem)}"
        )
        if memory.is_limit_raisable:
            most = mark(memory.capacity)
            yield f"                 vmem_limit_bytes can raise that limit to {most} bytes"
        for use in memory.uses:
            buffers = f" in {use.buffers} buffers" if use.buffers and use.buffers > 1 else ""
            yield f"  {one_line(use.name):14.40} {mark(use.size):>14} bytes of {use.space}{buffers}"

    def _lines(self) -> Iterator[str]:
        if not self.stats.lines:
            return
        yield (
            f"{'line':32} {'share':>7} {'own':>7} {'bundles':>8} {'spills':>7} {'fills':>6} copies"
        )
        for cost in self.stats.lines:
            name = one_line(line_text(cost.source))
            if len(name) > NAMES - 2:  # the number matters more than the start of the file's name
                name = name if len(name) <= NAMES else f"…{name[1 - NAMES :]}"
            elif cost.source.function:
                name = _cut(f"{name} {one_line(cost.source.function)}")
            yield (
                f"  {name:{NAMES}} {cost.share:7.1%} {cost.own_share:7.1%} "
                f"{cost.bundles:8,} {cost.spills:7,} {cost.fills:6,} {cost.copies:6,}"
            )

    def _cost_estimate(self) -> Iterator[str]:
        """Yield the estimate to declare, unless the kernel declares one or nothing is known."""
        counted = self.stats.cost_estimate
        if counted is None or not str(counted):
            return
        yield "cost estimate    the kernel declares none; what was counted makes this one:"
        yield f"  cost_estimate={counted}"
        for name, reason in counted.missing.items():
            yield f"  without {name}: {reason}"


def _basis(changed: WhatIf) -> Iterator[str]:
    """Yield on what the cycles with a change rest."""
    if not changed.is_bound:
        yield plural(changed.steps, "step")
    if changed.vmem is not None:
        yield f"{quantities.size_text(changed.vmem)} of VMEM without spills"
    if changed.assumed:
        yield f"the block of {', '.join(changed.assumed)} is assumed to change at every step"
    if any(part in changed.change for part in ("order=", "=resident", ".bits=")):
        yield "whether the kernel then computes the same is not checked"


def _cut(name: str) -> str:
    return name if len(name) <= NAMES else f"{name[: NAMES - 1]}…"
