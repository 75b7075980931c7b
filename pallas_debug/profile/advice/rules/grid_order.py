"""Advice: another order of the grid's axes would fetch fewer bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import (
    PipelineCost,
    copies,
    enlarged,
    ordered_axes,
    repeated_copies,
    size_text,
)
from pallas_debug.profile.advice.steady import affine_cycles
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

MIN_GAIN = 0.15
"""Minimum share of the estimated cycles that another order saves."""

MAX_ERROR = 0.25
"""Maximum error of the block-based estimate, from which other orders are estimated."""

MAX_AXES = 5
"""Maximum number of grid axes for which orders are compared."""

Order = tuple[int, ...]


def advise_grid_order(subject: AdviceSubject) -> Iterator[Advice]:
    blocks = subject.blocks
    if blocks is None or subject.is_compute_bound or not subject.cycles:
        return
    if not 2 <= len(blocks.grid) <= MAX_AXES or len(blocks.pipelined) < len(blocks.operands):
        return
    if subject.depends_on_tables or not all(map(is_affine, blocks.pipelined)):
        return
    read = ordered_axes(subject, blocks)
    now = enlarged(subject, blocks, {}, 0.0)
    if read is None or now is None or abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return
    # For each axis with ordered work, the axes inside of it, which must stay inside.
    fixed = {axis: frozenset(range(axis + 1, len(blocks.grid))) for axis in read}
    costs: dict[Order, PipelineCost] = {}
    for order in itertools.permutations(range(len(blocks.grid))):
        cost = enlarged(subject, reordered(blocks, order), {}, 0.0)
        if cost is not None and _is_allowed(order, fixed):
            costs[order] = cost
    if not costs:
        return
    best = min(costs, key=lambda order: (costs[order].moved, order))
    cycles = cycles_in_order(subject, blocks, best)
    if cycles is None or cycles > (1 - MIN_GAIN) * subject.cycles or costs[best].moved >= now.moved:
        return
    moving = [o for o in blocks.pipelined if o.name not in subject.resident]
    worst = max(moving, key=lambda o: repeated_copies(o, blocks.grid) * o.block_bytes)
    count, after = copies(worst, blocks.grid), copies(*_of(worst.name, reordered(blocks, best)))
    grid = ", ".join(str(blocks.grid[axis]) for axis in best)
    yield KIND.advice(
        source=subject.block_source(worst.name),
        operand=worst.name,
        message=(
            f"in the order of this grid, blocks of {worst.name} are fetched {count:,} times, "
            f"although there are only {worst.total:,}: {size_text(now.moved)} are moved in total"
        ),
        remedy=(
            f"reorder the axes of the grid to {', '.join(map(str, best))}, as ({grid}), and the "
            f"arguments of the index maps accordingly: {size_text(costs[best].moved)} are moved"
        ),
        evidence=(
            derived(f"copies of {worst.name}", count),
            derived(f"copies of {worst.name} in the other order", after),
            derived("bytes moved", now.moved, unit="bytes"),
            derived("bytes moved in the other order", costs[best].moved, unit="bytes"),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles in the other order", round(cycles), unit="cycles"),
        ),
    )


def cycles_in_order(subject: AdviceSubject, blocks: BlockMap, order: Order) -> float | None:
    """Estimate the kernel's cycles with the grid axes in another order; None if unknown."""
    now, after = affine_cycles(subject, blocks), affine_cycles(subject, reordered(blocks, order))
    if now is None or after is None or not now or not subject.cycles:
        return None
    return subject.cycles * after / now


def is_affine(operand: OperandBlocks) -> bool:
    return operand.unknown is None and all(d.strides is not None for d in operand.dimensions)


def _is_allowed(order: Order, fixed: dict[int, frozenset[int]]) -> bool:
    return all(frozenset(order[order.index(axis) + 1 :]) == fixed[axis] for axis in fixed)


def reordered(blocks: BlockMap, order: Order) -> BlockMap:
    """Return the block map with the grid axes in another order."""
    operands = tuple(
        replace(
            operand,
            visits=None,
            dimensions=tuple(
                replace(d, strides=tuple(d.strides[axis] for axis in order) if d.strides else None)
                for d in operand.dimensions
            ),
        )
        for operand in blocks.operands
    )
    grid = tuple(blocks.grid[axis] for axis in order)
    return replace(blocks, grid=grid, operands=operands)


def _of(name: str, blocks: BlockMap) -> tuple[OperandBlocks, tuple[int, ...]]:
    return next(o for o in blocks.operands if o.name == name), blocks.grid


KIND = AdviceKind(
    name="grid-order",
    title="A grid order that fetches blocks repeatedly",
    condition=(
        "Another order of the grid's axes, which keeps those that the kernel accumulates over or "
        f"reads in place, moves fewer bytes and saves at least {MIN_GAIN:.0%} of the estimated "
        "cycles of a kernel that is not bound by computation."
    ),
    remedy="Swap the axes of the grid, and the arguments of the index maps.",
    rule=advise_grid_order,
)
