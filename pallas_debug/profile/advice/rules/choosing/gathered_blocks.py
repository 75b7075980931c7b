"""Advice: each grid step copies one small block that a table selects, such as a row."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import depends, idle_bundles, size_text
from pallas_debug.profile.advice.program import LOADS
from pallas_debug.profile.advice.rules.row_loop import memory_of
from pallas_debug.profile.advice.steady import SteadyOperand, steady_cycles
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import OperandBlocks

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the change must save."""

MIN_STEPS = 64

TOGETHER = 32
"""Number of copies that a step of the proposal starts before it waits for the first."""

STARTING = 24
"""Cycles to start a copy and to wait for it; compiled kernels take 15 to 22."""

MAX_TRANSFER = 0.25
"""Maximum transfer time of a block, relative to the latency of a copy."""


def advise_gathered_blocks(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, step, rate = subject.blocks, subject.step, subject.bytes_per_cycle
    if blocks is None or step is None or not rate or not subject.cycles or not subject.core_points:
        return
    tables = subject.kernel.of_kind("scalar_prefetch")
    axis = max((n for n, size in enumerate(blocks.grid) if size > 1), default=None)
    if not tables or axis is None or subject.kernel.of_kind("scratch"):
        return
    if blocks.grid[axis] < MIN_STEPS or blocks.grid[axis] % TOGETHER:
        return
    chosen = [o for o in blocks.pipelined if o.unknown is not None or o.tables]
    others = [o for o in blocks.pipelined if o not in chosen]
    if len(chosen) != 1 or not _can_grow(others, axis):
        return
    (operand,) = chosen
    is_gather = operand.kind == "input"
    is_resident = operand.name in subject.resident
    if not is_gather and (is_resident or _is_read(subject, operand)):
        return
    # A step that fetches nothing waits for the write-back of the step before.
    fetches = is_gather and not is_resident
    latency = subject.latency if fetches else subject.write_latency
    transfer = operand.block_bytes / rate
    if transfer > MAX_TRANSFER * latency:
        return
    idle = min(idle_bundles(subject, subject.core_points), step.compute)
    own = subject.latency if is_gather else subject.write_latency
    compute = own + idle + TOGETHER * (step.compute - idle + STARTING + transfer)
    moving = [
        SteadyOperand(
            direction="in" if o.kind == "input" else "out",
            size=o.block_bytes * (TOGETHER if depends(o, axis) else 1),
            copies=(o.visits.copies if o.visits else blocks.points)
            / (TOGETHER if depends(o, axis) else 1)
            / subject.cores,
            buffers=o.buffers,
        )
        for o in others
        if o.name not in subject.resident
    ]
    steps = subject.core_points / TOGETHER
    cycles = steady_cycles(subject, moving, steps=steps, compute=compute)
    if cycles > (1 - MIN_GAIN) * subject.cycles:
        return
    each = subject.cycles / subject.core_points
    names = ", ".join(table.name for table in tables)
    growing = ", ".join(o.name for o in others if depends(o, axis))
    does = "fetches" if fetches else "works on" if is_gather else "writes back"
    yield KIND.advice(
        source=subject.block_source(operand.name),
        operand=operand.name,
        message=(
            f"each of {blocks.points:,} grid steps takes {each:,.0f} cycles, but computes for only "
            f"{step.compute:,.0f}: the index map of {operand.name} reads {names}, so each step "
            f"{does} {size_text(operand.block_bytes)}, of a different block as far as is known, "
            f"and the latency of a {'copy' if fetches else 'write-back'} is {latency:,.0f} cycles"
        ),
        remedy=_remedy(operand, growing, is_gather=is_gather),
        evidence=(
            derived("grid steps", blocks.points),
            derived("cycles of a step", round(each), unit="cycles"),
            derived("cycles of a step's computation", round(step.compute), unit="cycles"),
            derived("bytes of a block", operand.block_bytes, unit="bytes"),
            derived("latency of a copy", round(latency), unit="cycles"),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles with copies together", round(cycles), unit="cycles"),
        ),
    )


def _remedy(operand: OperandBlocks, growing: str, *, is_gather: bool) -> str:
    stays = (
        f"leave {operand.name} in HBM with pl.BlockSpec(memory_space=pl.ANY), give {growing} "
        f"blocks {TOGETHER} times as large"
    )
    if is_gather:
        return (
            f"{stays}, and start the {TOGETHER} copies of a step with pltpu.make_async_copy before "
            "waiting for the first"
        )
    return (
        f"{stays}, compute {TOGETHER} blocks of {operand.name} into scratch, and start the "
        f"{TOGETHER} copies of a step to their places with pltpu.make_async_copy before waiting "
        "for the first; copies to the same place would race"
    )


def _is_read(subject: AdviceSubject, operand: OperandBlocks) -> bool:
    """Return whether the kernel reads an output, which may hold what an earlier step stored."""
    program = subject.program
    if not program.operations or operand.reads_back:
        return True
    for load in program.named(*LOADS):
        memory = subject.operand(memory_of(program, load) or "")
        if memory is not None and memory.name == operand.name and program.final_users(load):
            return True
    return False


def _can_grow(others: list[OperandBlocks], axis: int) -> bool:
    """Return whether blocks can be enlarged along an axis; some must, and all outputs."""
    can_grow = False
    for operand in others:
        following = []
        for dimension in operand.dimensions:
            if dimension.strides is None:
                return False
            if dimension.strides[axis]:
                following.append(dimension)
        if not following and operand.kind == "input":
            continue
        if len(following) != 1 or following[0].strides is None:
            return False
        strides = following[0].strides
        if strides[axis] != 1 or sum(map(abs, strides)) != 1:
            return False
        can_grow = True
    return can_grow


KIND = AdviceKind(
    name="gathered-blocks",
    title="A small block per step, selected by a table",
    condition=(
        "The index map of an input, or of an output that is not read, reads scalar prefetch, its "
        f"blocks are small, each of at least {MIN_STEPS} steps waits for the latency of a copy, "
        f"and nothing carries over from one step to the next; {TOGETHER} copies at once would save "
        f"at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Copy the blocks manually, many at once.",
    rule=advise_gathered_blocks,
)
