"""Advice: blocks are so small that operands are fetched again and again, or steps do little."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.pipelines import (
    PipelineCost,
    copies,
    depends,
    enlarged,
    grows,
    idle_bundles,
    ordered_axes,
    repeated_copies,
    simple_dimension,
    size_text,
)
from pallas_debug.profile.advice.skips import has_skips, stepped
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that larger blocks save."""

MAX_ERROR = 0.15
"""Maximum error of the block-based estimate, from which larger blocks are estimated."""

MIN_STEPS = 16
"""Minimum grid steps of a kernel whose blocks count as small."""

FACTORS = (1, 2, 4, 8, 16)
MAX_BLOCK = 1024
"""Maximum size of a dimension of the proposed blocks."""

MIN_BLOCK = 8
"""Minimum size of a dimension along which a block is enlarged."""

MAX_SETTINGS = 1_000

MAX_STEPPED = 8
"""Maximum settings to simulate step by step, where index maps skip blocks."""


def advise_small_blocks(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, limit = subject.blocks, subject.vmem_limit
    if blocks is None or limit is None or blocks.points < MIN_STEPS or not blocks.pipelined:
        return
    if subject.depends_on_tables or len(blocks.pipelined) < len(blocks.operands):
        return  # the kernel does its own addressing, which larger blocks would change
    idle = idle_bundles(subject, subject.core_points)
    now = enlarged(subject, blocks, {}, idle)
    if now is None or not subject.cycles or now.cycles <= 0:
        return
    if abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return  # something else limits the kernel, such as steps that are skipped
    costs = (enlarged(subject, blocks, f, idle) for f in _settings(subject, blocks))
    fitting = [c for c in costs if c is not None and c.vmem <= limit]
    good = [c for c in fitting if c.cycles <= (1 - MIN_GAIN) * _least(subject, now)]
    if good and has_skips(blocks):
        good = sorted(good, key=lambda s: s.cycles)[:MAX_STEPPED]
        ran = [stepped(subject, blocks, cost, idle) for cost in (now, *good)]
        if ran[0] is None or abs(ran[0].cycles / subject.cycles - 1) > MAX_ERROR:
            return
        now = ran[0]
        most = (1 - MIN_GAIN) * _least(subject, now)
        good = [s for s in ran[1:] if s is not None and s.cycles <= most]
    if not good:
        return
    # Prefer the smallest VMEM among settings that are nearly as good as the best.
    best = min(s.cycles for s in good)
    chosen = min((s for s in good if s.cycles <= 1.05 * best), key=lambda s: s.vmem)
    moving = [o for o in blocks.pipelined if o.name not in subject.resident] or blocks.pipelined
    repeated = {o.name: repeated_copies(o, blocks.grid) * o.block_bytes for o in moving}
    is_repeated = _is_repeated(subject, now, chosen) and max(repeated.values()) > 0
    copied_bytes = {o.name: (copies(o, blocks.grid) or 0) * o.block_bytes for o in moving}
    worst = max(moving, key=lambda o: (repeated if is_repeated else copied_bytes)[o.name])
    count = _fetches(worst, blocks)
    copied = "fetched" if worst.kind == "input" else "written back"
    waiting = _waiting(subject)
    if is_repeated:
        cause = (
            f"{worst.name} is {copied} {count} times over, {size_text(now.moved)} are moved in "
            "total"
        )
    elif waiting > idle:
        cause = (
            f"each step waits {waiting:,.0f} cycles for its copies, whose transfer takes "
            f"{subject.step.copies if subject.step is not None else 0:,.0f}"
        )
    else:
        cause = f"{idle:.0f} bundles of each step do no vector work"
    yield KIND.advice(
        source=subject.block_source(worst.name),
        operand=worst.name,
        message=f"blocks of {_sizes(worst, blocks)} make {now.steps:,} grid steps: {cause}",
        remedy=(
            f"use larger blocks, such as {_proposal(blocks, chosen)}"
            f"{_tables(subject)}: {chosen.steps:,} steps, "
            f"{_moved(chosen.moved)}, using {size_text(chosen.vmem)} of the {size_text(limit)} of "
            "VMEM that the kernel may use"
        ),
        evidence=(
            derived("bytes moved", now.moved, unit="bytes"),
            derived(f"times {worst.name} is {copied}", count),
            derived("grid steps", now.steps),
            derived("cycles of a step that wait for copies", round(waiting), unit="cycles"),
            counted("bundles of a step without vector work", round(idle)),
            derived("bytes moved with larger blocks", chosen.moved, unit="bytes"),
            derived(
                "VMEM with larger blocks",
                chosen.vmem,
                "assuming that everything except windows grows with the blocks",
                unit="bytes",
            ),
            derived("estimated cycles", round(now.cycles), unit="cycles"),
            derived("estimated cycles with larger blocks", round(chosen.cycles), unit="cycles"),
        ),
    )


def _least(subject: AdviceSubject, now: PipelineCost) -> float:
    """Return the cycles of which larger blocks must save a part.

    Where steps do not wait for copies, all that an estimate by blocks is too high by is waiting
    that does not happen, which larger blocks would only seem to save.
    """
    if subject.is_compute_bound and subject.cycles:
        return min(now.cycles, subject.cycles)
    return now.cycles


def _is_repeated(subject: AdviceSubject, now: PipelineCost, chosen: PipelineCost) -> bool:
    """Return whether larger blocks save time mainly by copying fewer bytes repeatedly."""
    transfer = (now.moved - chosen.moved) / (subject.bytes_per_cycle or 1) / subject.cores
    return transfer >= (now.cycles - chosen.cycles) / 2


def _waiting(subject: AdviceSubject) -> float:
    """Return the average cycles that a step waits for copies."""
    if not subject.cycles or subject.step is None or not subject.core_points:
        return 0.0
    return max(subject.cycles / subject.core_points - subject.step.compute, 0.0)


def _moved(size: float) -> str:
    """Describe how many bytes the steps copy: none if XLA placed all arrays in VMEM."""
    if not size:
        return "which copy nothing, since XLA has placed the arrays in VMEM"
    return f"which move {size_text(size)}"


def _settings(subject: AdviceSubject, blocks: BlockMap) -> Iterator[dict[int, int]]:
    ordered = ordered_axes(subject, blocks) or frozenset()
    axes = [
        axis
        for axis, size in enumerate(blocks.grid)
        if size > 1 and not (axis in ordered and _carries_blocks(subject, blocks, axis))
    ]
    choices = [
        [f for f in FACTORS if blocks.grid[axis] % f == 0 and _is_allowed(blocks, axis, f)]
        for axis in axes
    ]
    for factors in itertools.islice(itertools.product(*choices), 1, MAX_SETTINGS):
        yield dict(zip(axes, factors, strict=True))


def _is_allowed(blocks: BlockMap, axis: int, factor: int) -> bool:
    """Return whether blocks can grow along an axis and keep a reasonable size.

    A dimension of size 1 is a batch, not a block. Where no input grows, the kernel either uses its
    own addressing, which larger blocks would change, or makes several passes.
    """
    if factor == 1:
        return True
    growing = [o for o in blocks.pipelined if grows(o, axis, blocks.grid)]
    for operand in growing:
        n = simple_dimension(operand, axis, blocks.grid)
        size = operand.dimensions[n].size if n is not None else MIN_BLOCK
        if not MIN_BLOCK <= size <= MAX_BLOCK // factor:
            return False
    return any(operand.kind == "input" for operand in growing)


def _carries_blocks(subject: AdviceSubject, blocks: BlockMap, axis: int) -> bool:
    """Return whether steps along an axis may keep blocks in scratch, which larger ones change.

    A sum does not count: it is stored after its last step along an axis that no output depends on.
    """
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    inner = range(axis, len(blocks.grid))
    if not all(depends(output, other) for output in outputs for other in inner):
        return False
    shapes = [operand.shape for operand in subject.kernel.of_kind("scratch")]
    for operand in blocks.pipelined:
        n = simple_dimension(operand, axis, blocks.grid)
        if n is not None:
            place, size = len(operand.dimensions) - n, operand.dimensions[n].size
            if any(len(shape) >= place and shape[-place] == size for shape in shapes):
                return True
    return False


def _fetches(operand: OperandBlocks, blocks: BlockMap) -> float:
    """Return how many times an operand is copied; less than 1 if only part of it is copied."""
    total, count = operand.total, copies(operand, blocks.grid)
    if count and operand.visits is not None:
        count = min(count, operand.visits.copies)  # an index map may skip blocks
    times = count / total if total and count else 1
    return round(times) if times >= 1 else round(times, 2)


def _sizes(operand: OperandBlocks, blocks: BlockMap, cost: PipelineCost | None = None) -> str:
    sizes = []
    for n, dimension in enumerate(operand.dimensions):
        size = dimension.size
        for axis, factor in (cost.factors if cost is not None else {}).items():
            if simple_dimension(operand, axis, blocks.grid) == n:
                size *= factor
        if dimension.kind != "squeezed" or size > 1:
            sizes.append(str(size))
    return f"({', '.join(sizes)})"


def _proposal(blocks: BlockMap, cost: PipelineCost) -> str:
    return ", ".join(
        f"{_sizes(operand, blocks, cost)} for {operand.name}" for operand in _changed(blocks, cost)
    )


def _tables(subject: AdviceSubject) -> str:
    """Name the tables whose values may have to change with the blocks."""
    names = [operand.name for operand in subject.kernel.of_kind("scalar_prefetch")]
    return f", with {', '.join(names)} adapted to them if they count blocks" if names else ""


def _changed(blocks: BlockMap, cost: PipelineCost) -> list[OperandBlocks]:
    return [o for o in blocks.pipelined if _sizes(o, blocks, cost) != _sizes(o, blocks)]


KIND = AdviceKind(
    name="small-blocks",
    title="Blocks that are too small",
    condition=(
        f"Larger blocks that fit in VMEM would save at least {MIN_GAIN:.0%} of the estimated "
        "cycles, through fewer bytes to move or fewer grid steps."
    ),
    remedy="Use larger blocks.",
    rule=advise_small_blocks,
)
