"""Advice: blocks are so small that operands are fetched again and again, or steps do little."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.rules.moves import is_vector_instruction
from pallas_debug.profile.advice.rules.pipelines import (
    PipelineCost,
    copies,
    enlarged,
    simple_dimension,
    size_text,
)
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that larger blocks save."""

MAX_ERROR = 0.15
"""Maximum error of the estimate from blocks alone, of which larger ones are then estimated."""

MIN_STEPS = 16
"""Minimum grid steps of a kernel whose blocks are called small."""

FACTORS = (1, 2, 4, 8, 16)
MAX_BLOCK = 1024
"""Maximum size of a dimension of the blocks that are proposed."""

MIN_BLOCK = 8
"""Minimum size of a dimension along which a block is enlarged."""

MAX_SETTINGS = 1_000


def advise_small_blocks(subject: AdviceSubject) -> tuple[Advice, ...]:
    blocks, limit = subject.blocks, subject.vmem_limit
    if blocks is None or limit is None or blocks.points < MIN_STEPS or not blocks.pipelined:
        return ()
    if subject.kernel.of_kind("scalar_prefetch") or len(blocks.pipelined) < len(blocks.operands):
        return ()  # the kernel does its own addressing, which larger blocks would change
    overhead = _overhead(subject)
    now = enlarged(subject, blocks, {}, overhead)
    if now is None or not subject.cycles or now.cycles <= 0:
        return ()
    if abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return ()  # something else decides, such as steps that are skipped
    settings = (enlarged(subject, blocks, f, overhead) for f in _settings(blocks))
    fitting = [s for s in settings if s is not None and s.vmem <= limit]
    good = [s for s in fitting if s.cycles <= (1 - MIN_GAIN) * now.cycles]
    if not good:
        return ()
    # The least VMEM among those that are nearly as good as the best.
    best = min(s.cycles for s in good)
    chosen = min((s for s in good if s.cycles <= 1.05 * best), key=lambda s: s.vmem)
    worst = max(blocks.pipelined, key=lambda o: (_fetches(o, blocks), o.block_bytes))
    count = _fetches(worst, blocks)
    again = (
        f"{worst.name} is fetched {count} times over, {size_text(now.moved)} are moved in all"
        if count > 1
        else f"{overhead:.0f} bundles of each step do no vector work"
    )
    return (
        Advice(
            kind=KIND.name,
            operand=worst.name,
            message=f"blocks of {_sizes(worst, None)} make {now.steps:,} grid steps: {again}",
            remedy=(
                f"use larger blocks, such as {_proposal(blocks, chosen)}: {chosen.steps:,} steps "
                f"that move {size_text(chosen.moved)}, in {size_text(chosen.vmem)} of "
                f"{size_text(limit)} of VMEM"
            ),
            evidence=(
                derived("bytes moved", now.moved, unit="bytes"),
                derived(f"times {worst.name} is fetched", count),
                derived("grid steps", now.steps),
                counted("bundles of a step without vector work", round(overhead)),
                derived("bytes moved with larger blocks", chosen.moved, unit="bytes"),
                derived(
                    "VMEM with larger blocks",
                    chosen.vmem,
                    "assuming that all that is no window grows with the blocks",
                    unit="bytes",
                ),
                derived("estimated cycles", round(now.cycles), unit="cycles"),
                derived("estimated cycles with larger blocks", round(chosen.cycles), unit="cycles"),
            ),
        ),
    )


def _settings(blocks: BlockMap) -> Iterator[dict[int, int]]:
    axes = [axis for axis, size in enumerate(blocks.grid) if size > 1]
    choices = [
        [f for f in FACTORS if blocks.grid[axis] % f == 0 and _is_allowed(blocks, axis, f)]
        for axis in axes
    ]
    for factors in itertools.islice(itertools.product(*choices), 1, MAX_SETTINGS):
        yield dict(zip(axes, factors, strict=True))


def _is_allowed(blocks: BlockMap, axis: int, factor: int) -> bool:
    """Whether blocks stay of a usual size along an axis; one that is 1 is a batch, not a block."""
    for operand in blocks.pipelined:
        n = simple_dimension(operand, axis)
        size = operand.dimensions[n].size if n is not None else MIN_BLOCK
        if factor > 1 and not MIN_BLOCK <= size <= MAX_BLOCK // factor:
            return False
    return True


def _overhead(subject: AdviceSubject) -> float:
    """Bundles of a step, on average, that contain no vector instruction."""
    busy = {p.bundle for p in subject.instructions if is_vector_instruction(p.opcode)}
    points = subject.blocks.points if subject.blocks is not None else 0
    if not subject.executions or not points:
        return 0.0
    idle = sum(w for at, w in enumerate(subject.executions) if at not in busy)
    return idle / points


def _fetches(operand: OperandBlocks, blocks: BlockMap) -> int:
    """How many times the whole of an operand is copied."""
    total, count = operand.total, copies(operand, blocks.grid)
    return round(count / total) if total and count else 1


def _sizes(operand: OperandBlocks, cost: PipelineCost | None) -> str:
    sizes = []
    for n, dimension in enumerate(operand.dimensions):
        size = dimension.size
        for axis, factor in (cost.factors if cost is not None else {}).items():
            if simple_dimension(operand, axis) == n:
                size *= factor
        if dimension.kind != "squeezed":
            sizes.append(str(size))
    return f"({', '.join(sizes)})"


def _proposal(blocks: BlockMap, cost: PipelineCost) -> str:
    changed = [
        f"{_sizes(operand, cost)} for {operand.name}"
        for operand in blocks.pipelined
        if _sizes(operand, cost) != _sizes(operand, None)
    ]
    return ", ".join(changed)


KIND = AdviceKind(
    name="small-blocks",
    title="Blocks that are too small",
    condition=(
        f"Larger blocks that fit in VMEM would save at least {MIN_GAIN:.0%} of the estimated "
        "cycles, by fewer bytes to move or by fewer grid steps."
    ),
    remedy="Use larger blocks.",
    rule=advise_small_blocks,
)
