"""Cycles of a kernel with larger or smaller blocks, simulated step by step without compiling it.

The work of a step is divided into what each step costs whatever its blocks are (loops and steps),
what grows with the blocks (loops inside the kernel), and the rest, which overlaps in a longer
schedule until its busiest unit is full. Copies go through the simulated pipeline. The result is the
estimate times the ratio of two simulations, so an error that both share cancels out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pallas_debug.errors import UsageError
from pallas_debug.profile import units
from pallas_debug.profile.advice.advice import Advice, derived
from pallas_debug.profile.advice.pipelines import simple_dimension, size_text
from pallas_debug.profile.advice.rules import small_blocks
from pallas_debug.profile.blocks import BlockMap, OperandBlocks, grid_point
from pallas_debug.profile.core.copies import copy_model
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.timeline.parts import Block
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

FILLED = 0.75
"""Share of its capacity that the busiest unit reaches in a long schedule."""

_SIZE = re.compile(r"(?P<name>.{1,200})\[(?P<dimension>\d{1,2})\]=(?P<size>\d{1,9})")

FACTORS = (2, 4, 8, 16)
"""Factors by which larger blocks are tried."""

MAX_STEPS = 4096
"""Maximum steps to simulate; the remaining steps are assumed to be similar."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change, and the cycles with it.

    Attributes:
      change: sizes that differ, such as `k_ref[2]=512`.
      now, cycles: estimated cycles without and with it.
      steps: number of grid points.
      vmem: bytes of VMEM, if everything but windows grows with the blocks.
      assumed: operands whose block is assumed to change at every step.
    """

    change: str
    now: Figure
    cycles: Figure
    steps: int
    vmem: int | None
    assumed: tuple[str, ...] = ()


def with_blocks(profile: Profile, sizes: Mapping[tuple[str, int], int]) -> WhatIf:
    """Estimate a kernel's cycles with other block sizes.

    All operands whose index follows the same axis of the grid change with it.

    Args:
      sizes: new sizes, by name of an operand and dimension of its block.

    Raises:
      UsageError: a name is no block, a size does not divide the array, or VMEM is too small.
    """
    blocks, now = profile.blocks, profile.cycles.total
    if blocks is None or blocks.unknown is not None or not blocks.points:
        raise UsageError("the blocks of this kernel are not known")
    if now.value is None:
        raise UsageError(
            "the cycles of this kernel are a formula; a call whose arguments have values makes "
            "them a number"
        )
    factors: dict[int, float] = {}
    for (name, dimension), size in sizes.items():
        axis, factor = _factor(blocks, name, dimension, size)
        if factors.setdefault(axis, factor) != factor:
            raise UsageError(f"axis {axis} of the grid cannot follow two sizes of blocks")
    grid = tuple(_divided(n, factors.get(axis, 1.0)) for axis, n in enumerate(blocks.grid))
    vmem, limit = _vmem(profile, blocks, factors), profile.memory.limit.value
    if vmem is not None and limit is not None and vmem > limit:
        raise UsageError(
            f"these blocks need {size_text(vmem)} of VMEM, of the {size_text(limit)} that the "
            "kernel may use; vmem_limit_bytes may raise it"
        )
    before = _simulated(profile, blocks, {}, blocks.grid)
    after = _simulated(profile, blocks, factors, grid)
    return WhatIf(
        change=", ".join(f"{name}[{n}]={size}" for (name, n), size in sizes.items()),
        now=now,
        cycles=replace(
            now, value=round(now.value * after / before), origin="assumed", note="simulated"
        ),
        steps=math.prod(grid),
        vmem=None if vmem is None else round(vmem),
        assumed=tuple(o.name for o in blocks.pipelined if o.unknown is not None),
    )


def larger_blocks(profile: Profile) -> Iterator[Advice]:
    """Advise larger blocks of operands whose index maps read tables with unknown values."""
    blocks, now = profile.blocks, profile.cycles.total.value
    kernel = profile.kernel
    if blocks is None or kernel is None or not now or blocks.points < small_blocks.MIN_STEPS:
        return
    fitting: list[tuple[WhatIf, OperandBlocks]] = []
    for operand in blocks.pipelined:
        for n, dimension in enumerate(operand.dimensions):
            axis = axis_of(blocks, operand, n) if operand.unknown is not None else None
            if axis is None or dimension.size < small_blocks.MIN_BLOCK:
                continue
            for factor in FACTORS:
                try:
                    found = with_blocks(profile, {(operand.name, n): dimension.size * factor})
                except UsageError:  # too large
                    break
                fitting.append((found, operand))
    good = [w for w in fitting if (w[0].cycles.value or now) <= (1 - small_blocks.MIN_GAIN) * now]
    if not good:
        return
    best = min(w.cycles.value or 0 for w, _ in good)
    chosen, operand = min(
        (w for w in good if (w[0].cycles.value or 0) <= 1.05 * best), key=lambda w: w[0].vmem or 0
    )
    names = ", ".join(chosen.assumed)
    yield small_blocks.KIND.advice(
        source=next((o.block_source for o in kernel.operands if o.name == operand.name), None),
        operand=operand.name,
        message=(
            f"blocks of {operand.name} make {blocks.points:,} grid steps: {profile.bottleneck[0]}"
        ),
        remedy=(
            f"use larger blocks, such as {chosen.change}: {chosen.steps:,} steps and about "
            f"{chosen.cycles} cycles, if the block of {names} changes at every step"
        ),
        evidence=(
            derived("grid steps", blocks.points),
            derived("VMEM with larger blocks", chosen.vmem, unit="bytes"),
            derived("estimated cycles", now, unit="cycles"),
            derived("estimated cycles with larger blocks", chosen.cycles.value, unit="cycles"),
        ),
    )


def parse_sizes(texts: Iterable[str]) -> dict[tuple[str, int], int]:
    """Parse sizes of blocks: `k_ref[2]=512`.

    Raises:
      UsageError: a text has another form.
    """
    found = {}
    for text in texts:
        size = _SIZE.fullmatch(text.strip())
        if size is None:
            raise UsageError(
                f"{text!r} is no size of a block: name an operand and a dimension of its blocks, "
                "such as 'x_ref[0]=512'"
            )
        found[size["name"], int(size["dimension"])] = int(size["size"])
    return found


def axis_of(blocks: BlockMap, operand: OperandBlocks, dimension: int) -> int | None:
    """Return the axis of the grid that the blocks of a dimension follow.

    If an index map reads tables with unknown values, it is the only axis with as many points as
    the dimension has blocks; of several, the only one that no other operand's blocks follow.
    """
    grid = blocks.grid
    if operand.unknown is None:
        return _only(a for a in range(len(grid)) if simple_dimension(operand, a, grid) == dimension)
    size, count = operand.dimensions[dimension].size, operand.dimensions[dimension].count
    fitting = [axis for axis, points in enumerate(grid) if points == count > 1 and size > 1]
    taken = {
        axis
        for other in blocks.pipelined
        if other.unknown is None
        for axis in fitting
        if simple_dimension(other, axis, grid) is not None
    }
    found = _only(fitting)
    return _only(axis for axis in fitting if axis not in taken) if found is None else found


def _only(axes: Iterable[int]) -> int | None:
    found = list(axes)
    return found[0] if len(found) == 1 else None


def _factor(blocks: BlockMap, name: str, dimension: int, size: int) -> tuple[int, float]:
    operand = next((o for o in blocks.pipelined if o.name == name), None)
    if operand is None or not 0 <= dimension < len(operand.dimensions):
        known = ", ".join(f"{o.name}[0..{len(o.dimensions) - 1}]" for o in blocks.pipelined)
        raise UsageError(f"{name}[{dimension}] is no block of this kernel, which has {known}")
    block = operand.dimensions[dimension]
    axis = axis_of(blocks, operand, dimension)
    if axis is None:
        raise UsageError(f"no axis of the grid moves the blocks of {name} along {dimension}")
    if size < 1 or block.bound % size:
        raise UsageError(
            f"blocks of {size} do not divide dimension {dimension} of {name}, which has "
            f"{block.bound:,} elements"
        )
    return axis, size / block.size


def _divided(points: int, factor: float) -> int:
    return max(math.ceil(points / factor), 1)


def _growth(blocks: BlockMap, operand: OperandBlocks, factors: Mapping[int, float]) -> float:
    """Return the factor by which the blocks of an operand grow."""
    axes = _axes(blocks, operand)
    return math.prod(factor for axis, factor in factors.items() if axis in axes)


def _vmem(profile: Profile, blocks: BlockMap, factors: Mapping[int, float]) -> float | None:
    used = profile.memory.vmem.value
    if used is None:
        return None
    windows = {o.name: o.block_bytes * o.buffers for o in blocks.pipelined}
    rest = max(used - sum(windows.values()), 0)
    larger = sum(windows[o.name] * _growth(blocks, o, factors) for o in blocks.pipelined)
    return larger + rest * max(math.prod(factors.values()), 1.0)


def _simulated(
    profile: Profile, blocks: BlockMap, factors: Mapping[int, float], grid: tuple[int, ...]
) -> float:
    """Run the pipeline over a grid, and return its cycles."""
    model, _ = copy_model(profile.schedule.chip)
    steps = math.prod(grid)
    compute = _compute(profile, math.prod(factors.values()))
    operands = [
        PipelineOperand(
            lane=number,
            direction="in" if operand.kind == "input" else "out",
            buffers=operand.buffers,
            reads_back=operand.reads_back,
            block=partial(_block, operand, _axes(blocks, operand), blocks, factors, grid),
            size=partial(_same, operand.block_bytes * _growth(blocks, operand, factors)),
            fetch=lambda size: model.time("hbm_to_vmem", round(size)),
            write=lambda size: model.time("vmem_to_hbm", round(size)),
        )
        for number, operand in enumerate(blocks.pipelined)
        if operand.name not in profile.traffic.resident
    ]
    pipeline = Pipeline(operands, steps=steps, compute=lambda _: compute, keeps=lambda _: False)
    ran = min(steps, MAX_STEPS)
    return pipeline.run(0, ran).end * steps / ran


def _axes(blocks: BlockMap, operand: OperandBlocks) -> list[int | None]:
    return [axis_of(blocks, operand, n) for n in range(len(operand.dimensions))]


def _block(
    operand: OperandBlocks,
    axes: Sequence[int | None],
    blocks: BlockMap,
    factors: Mapping[int, float],
    grid: tuple[int, ...],
    step: int,
) -> Block:
    """Return the larger block of an operand at a step of the smaller grid."""
    if operand.unknown is not None:
        return None
    point = tuple(
        min(int(index * factors.get(axis, 1.0)), blocks.grid[axis] - 1)
        for axis, index in enumerate(grid_point(grid, step))
    )
    block = blocks.block(operand, point)
    if block is None:
        return None
    found = []
    for axis, index in zip(axes, block, strict=True):
        factor = factors.get(axis, 1.0) if axis is not None else 1.0
        if factor < 1 and axis is not None:  # several small blocks in one of the old ones
            found.append(grid_point(grid, step)[axis])
        else:
            found.append(int(index / factor))
    return tuple(found)


def _same(size: float, block: Block) -> float:
    return size


def _compute(profile: Profile, factor: float) -> float:
    """Return the compute cycles of a step whose blocks are larger by a factor."""
    steps = profile.cycles.core_steps.value or 1
    costs, schedule = profile.costs, profile.schedule
    grid_loops = {None, *(loop.number for loop in schedule.loops if loop.depth == 0)}
    if steps == 1:
        grid_loops = {None}
    fixed = growing = rest = 0.0
    for cell in costs.cells:
        if cell.reason == "overhead" and cell.loop in grid_loops:
            fixed += cell.cycles
        elif cell.reason != "copy" and cell.loop not in grid_loops:
            growing += cell.cycles
        elif cell.reason != "copy":
            rest += cell.cycles
    busiest = _busiest(profile, grid_loops) / FILLED
    # Work that no unit limits overlaps with that of the rest of a larger block.
    if factor < 1:
        rest *= factor
    step = fixed + growing * factor + max(rest, busiest * factor)
    return step / steps


def _busiest(profile: Profile, loops: set[int | None]) -> float:
    """Return the cycles of the busiest unit, if it were never idle, outside of inner loops."""
    schedule, executions = profile.schedule, profile.cycles.executions
    table = schedule.table
    if table is None or not schedule.is_matched or not executions:
        return 0.0
    found = [schedule.loop_at(at) for at in range(len(table.rows))]
    weights = [
        times if (loop.number if loop else None) in loops else 0.0
        for times, loop in zip(executions, found, strict=True)
    ]
    return max(
        (
            sum(row[n] * w for row, w in zip(table.rows, weights, strict=True)) / capacity
            for n, (name, capacity) in enumerate(zip(table.names, table.capacity, strict=True))
            if name in units.VECTOR and capacity
        ),
        default=0.0,
    )
