"""Advice: blocks are so small that operands are fetched again and again, or steps do little."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    Evidence,
    applies,
    counted,
    derived,
    derived_share,
    percent,
)
from pallas_debug.profile.advice.growth import growth_of
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.pipelines import (
    UNKNOWN_GROWTH,
    PipelineCost,
    StepLatency,
    WorkGrowth,
    copies,
    depends,
    enlarged,
    grows,
    idle_bundles,
    latency_of,
    ordered_axes,
    repeated_copies,
    simple_dimension,
    size_text,
)
from pallas_debug.profile.advice.program import LOADS, STORES
from pallas_debug.profile.advice.rules.choosing.gathered_blocks import advise_gathered_blocks
from pallas_debug.profile.advice.rules.products.thin_product import advise_thin_product
from pallas_debug.profile.advice.rules.products.thin_steps import advise_thin_steps
from pallas_debug.profile.advice.rules.row_loop import index_values
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

MIN_BATCHED_STEPS = 32
MIN_BATCHED_GAIN = 0.4
"""Minimum grid steps, and minimum share of the estimated cycles that is saved, where a step would
take several entries of a batch: the kernel has to be written for that."""

MAX_BATCHED = 1_000
"""Maximum cycles of a step whose work overlaps with that on other entries of a batch; that of
longer ones has too many values for it. Compiled kernels: of 284 to 567 cycles, 52 to 290 are left
for each entry; of 1,398 and 1,570 cycles, 1,023 and 1,180."""

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
    latency = _latency(subject, idle)
    overhead = idle + (latency.cycles if latency is not None else 0.0)
    now = enlarged(subject, blocks, {}, overhead)
    if now is None or not subject.cycles or now.cycles <= 0:
        return
    if abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return  # something else limits the kernel, such as steps that are skipped
    stalled = overhead - idle
    good: list[PipelineCost] = []
    is_short = subject.step is not None and subject.step.compute <= MAX_BATCHED
    for settings, fixed, growth, gain in (
        (_settings(subject, blocks), overhead, growth_of(subject, blocks), MIN_GAIN),
        (
            _batched_settings(subject, blocks),
            overhead if is_short else idle,
            UNKNOWN_GROWTH,
            MIN_BATCHED_GAIN,
        ),
    ):
        costs = (enlarged(subject, blocks, f, fixed, growth) for f in settings)
        fitting = [c for c in costs if c is not None and c.vmem <= limit]
        good = [c for c in fitting if c.cycles <= (1 - gain) * _least(subject, now)]
        if good and has_skips(blocks):
            good = sorted(good, key=lambda s: s.cycles)[:MAX_STEPPED]
            ran = [stepped(subject, blocks, cost, idle, stalled, growth) for cost in (now, *good)]
            if ran[0] is None or abs(ran[0].cycles / subject.cycles - 1) > MAX_ERROR:
                return
            now = ran[0]
            most = (1 - gain) * _least(subject, now)
            good = [s for s in ran[1:] if s is not None and s.cycles <= most]
        if good:
            break
    if not good or _selects_by_table(subject):
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
    waiting, again = _waiting(subject), _done_again(subject, growth, chosen, overhead)
    if is_repeated:
        cause = (
            f"{worst.name} is {copied} {count} times over, {size_text(now.moved)} are moved in "
            "total"
        )
    elif again > max(waiting, overhead):
        cause = (
            f"about {again:,.0f} of "
            f"{subject.step.compute if subject.step is not None else 0:,.0f} cycles of each step "
            "are work that would not grow with the blocks"
        )
    elif waiting > overhead:
        cause = (
            f"each step waits {waiting:,.0f} cycles for its copies, whose transfer takes "
            f"{subject.step.copies if subject.step is not None else 0:,.0f}"
        )
    elif latency is not None and latency.cycles > idle:
        cause = (
            f"a step is too short for its work to overlap, and {latency.unit}, the busiest vector "
            f"unit, is used to {percent(latency.used, 1)}"
        )
    else:
        cause = f"{idle:.0f} bundles of each step do no vector work"
    yield KIND.advice(
        source=subject.block_source(worst.name),
        operand=worst.name,
        message=f"blocks of {_sizes(worst, blocks)} make {now.steps:,} grid steps: {cause}",
        remedy=(
            f"use larger blocks, such as {_proposal(blocks, chosen)}"
            f"{_tables(subject)}{_parts(blocks, chosen)}: {chosen.steps:,} steps, "
            f"{_moved(chosen.moved)}, using {size_text(chosen.vmem)} of the {size_text(limit)} of "
            "VMEM that the kernel may use"
        ),
        evidence=(
            derived("bytes moved", now.moved, unit="bytes"),
            derived(f"times {worst.name} is {copied}", count),
            derived("grid steps", now.steps),
            derived("cycles of a step that wait for copies", round(waiting), unit="cycles"),
            counted("bundles of a step without vector work", round(idle)),
            derived(
                "cycles of a step that would not grow with the blocks",
                round(again),
                unit="cycles",
            ),
            *_busiest(latency),
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


def _selects_by_table(subject: AdviceSubject) -> bool:
    """Return whether the kernel reads memory at a place from a table, such as weights of a group.

    A larger block could then belong to several groups.
    """
    program = subject.program
    tables = {o.name for o in subject.kernel.of_kind("scalar_prefetch")}
    if not tables:
        return False
    for access in program.named(*LOADS, *STORES, "tpu.memref_slice"):
        if access.name in ("memref.load", "memref.store"):
            continue
        is_view = access.name == "tpu.memref_slice"
        for value in access.operands[1:] if is_view else index_values(access):
            for source in program.sources_of(value, access.line) or ():
                table = subject.operand(source.operands[0]) if source.operands else None
                if source.name == "memref.load" and table is not None and table.name in tables:
                    return True
    return False


def _is_repeated(subject: AdviceSubject, now: PipelineCost, chosen: PipelineCost) -> bool:
    """Return whether larger blocks save time mainly by copying fewer bytes repeatedly."""
    transfer = (now.moved - chosen.moved) / (subject.bytes_per_cycle or 1) / subject.cores
    return transfer >= (now.cycles - chosen.cycles) / 2


def _waiting(subject: AdviceSubject) -> float:
    """Return the average cycles that a step waits for copies."""
    if not subject.cycles or subject.step is None or not subject.core_points:
        return 0.0
    return max(subject.cycles / subject.core_points - subject.step.compute, 0.0)


def _done_again(
    subject: AdviceSubject, growth: WorkGrowth, chosen: PipelineCost, overhead: float
) -> float:
    """Return the cycles of a step, besides its overhead, that larger blocks would save."""
    work = max(subject.step.compute - overhead, 0.0) if subject.step is not None else 0.0
    return work * max(1 - growth.share(chosen.factors, work * subject.core_points), 0.0)


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


def _batched_settings(subject: AdviceSubject, blocks: BlockMap) -> Iterator[dict[int, int]]:
    """Yield settings in which a step takes several entries of a batch, such as several heads.

    Other advice on steps with few rows, or with a block that a table selects, saves more.
    """
    ordered = ordered_axes(subject, blocks)
    if ordered is None or any(blocks.grid[axis] > 1 for axis in ordered):
        return  # steps that depend on each other, or on their place
    if blocks.points < MIN_BATCHED_STEPS or subject.kernel.of_kind("scratch"):
        return
    if any(repeated_copies(o, blocks.grid) for o in blocks.pipelined) or applies(
        subject, advise_thin_steps, advise_gathered_blocks, advise_thin_product
    ):
        return  # fewer fetches of the same blocks need no other kernel
    axes = [n for n, size in enumerate(blocks.grid) if size > 1 and _is_batch(blocks, n)]
    choices = [[f for f in FACTORS if blocks.grid[axis] % f == 0] for axis in axes]
    for factors in itertools.islice(itertools.product(*choices), 1, MAX_SETTINGS):
        yield dict(zip(axes, factors, strict=True))


def _is_batch(blocks: BlockMap, axis: int) -> bool:
    """Return whether blocks have one index along an axis, in a dimension before the last two."""
    found = False
    for operand in blocks.pipelined:
        if not depends(operand, axis):
            continue
        n = simple_dimension(operand, axis, blocks.grid)
        if n is None or n >= len(operand.dimensions) - 2 or operand.dimensions[n].size != 1:
            return False
        found = True
    return found


def _parts(blocks: BlockMap, cost: PipelineCost) -> str:
    """Say how a kernel computes several entries of a batch; empty for blocks of rows."""
    count = math.prod(f for axis, f in cost.factors.items() if f > 1 and _is_batch(blocks, axis))
    return f", whose {count} parts are computed side by side, by an unrolled loop" * (count > 1)


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


def _latency(subject: AdviceSubject, idle: float) -> StepLatency | None:
    """Compare a step with the cycles that its busiest unit needs; None if it has loops.

    The compiler interleaves the instructions of a larger block, so they stall no longer than those
    of a small block. This does not hold for the iterations of a loop.
    """
    if subject.step is None:
        return None
    vector = [p for p in subject.instructions if is_vector_instruction(p.opcode)]
    loop = subject.loop_of(vector)
    if loop is None or loop.depth or subject.program.loops:
        return None
    return latency_of(subject, subject.core_points, subject.step.compute, idle)


def _busiest(latency: StepLatency | None) -> tuple[Evidence, ...]:
    if latency is None:
        return ()
    return (
        derived_share(f"use of {latency.unit}, the busiest unit", latency.used),
        derived("cycles of a step in which vector work waits", round(latency.cycles)),
    )


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
        "cycles, through fewer bytes to move, fewer grid steps, or more overlapping work; or each "
        f"of at least {MIN_BATCHED_STEPS} steps takes one entry of a batch, none depends on "
        f"another, and several per step would save at least {MIN_BATCHED_GAIN:.0%}."
    ),
    remedy="Use larger blocks.",
    rule=advise_small_blocks,
)
