"""Text of the statistics of a kernel for a GPU, as `stats` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pallas_debug.findings.facts import line_text
from pallas_debug.profile.gpu import OCCUPANCY
from pallas_debug.quantities import percent, size_text
from pallas_debug.render import one_line, plural

if TYPE_CHECKING:
    from pallas_debug.model import SourceLine
    from pallas_debug.profile.gpu import GpuStats

BAR = 20
LINES = 5
"""Lines of the kernel on the first screen."""


def lines_of(
    stats: GpuStats,
    *,
    whole: bool,
    text_of: Callable[[SourceLine], str | None] = lambda line: line.text,
) -> Iterator[str]:
    """Yield the lines of the first screen, or of everything that is known."""
    yield one_line(f"{stats.kernel} on {stats.target}: {', '.join(_resources(stats))}")
    if stats.occupancy is not None:
        of = stats.occupancy
        yield (
            f"  {plural(of.blocks, 'block')} at a time on a multiprocessor, {of.warps} of "
            f"{of.maximum} warps: limited by {of.limited_by}"
        )
        if whole:
            yield f"    {of.formula} ({OCCUPANCY})"
    yield from (f"problem: {problem}" for problem in stats.problems)
    total = stats.instructions or 0
    if stats.inner_loop is not None:
        loop = stats.inner_loop
        place = f" at {line_text(loop.source)}" if loop.source is not None else ""
        yield one_line(
            f"  inner loop: {plural(loop.tensor, 'tensor-core instruction')}{place} among "
            f"{plural(loop.count, 'instruction')}"
        )
    if total:
        yield f"  {plural(total, 'instruction')}:"
    for name, count in stats.classes.items():
        bar = "█" * round(count / total * BAR)
        yield f"    {name:18} {percent(count / total):>5} {count:7,} {bar}".rstrip()
    shown = stats.lines if whole else stats.lines[:LINES]
    names = [one_line(line_text(line.source)) for line in shown]
    width = max(map(len, names), default=0)
    for name, line in zip(names, shown, strict=True):
        most = ", ".join(f"{count:,} {kind}" for kind, count in list(line.classes.items())[:3])
        text = one_line(" ".join((text_of(line.source) or "").split()))
        yield f"  {name:{width}} {percent(line.count / total):>5}  {most}  {text}".rstrip()
    yield from (one_line(f"  ptxas: {notice}") for notice in stats.notices)


def _resources(stats: GpuStats) -> Iterator[str]:
    if stats.registers is not None:
        yield f"{stats.registers} registers"
    if stats.spill_stores or stats.spill_loads:
        yield (
            f"{stats.spill_stores or 0:,} bytes of spills stored and "
            f"{stats.spill_loads or 0:,} loaded"
        )
    elif stats.spill_stores is not None:
        yield "no spills"
    if stats.shared is not None:
        yield f"{size_text(stats.shared)} of shared memory"
    if stats.tensor_memory:
        yield f"{stats.tensor_memory} columns of tensor memory"
    if stats.barriers is not None:
        yield plural(stats.barriers, "barrier")
    if stats.threads is not None:
        yield f"{stats.threads} threads"
