"""Rules of advice, as rows: what is looked for in a kernel's costs, what a change saves, and what
to do.

A rule reads the costs and the blocks, and asks `whatif` for the saving. No rule knows another one.
Each fires on kernels that others published (`benchmarks/costs.py`); rules on the order of the grid
and on single buffers fired on none of them, and are left to `stats --what-if`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.errors import UsageError
from pallas_debug.model import SourceLine
from pallas_debug.profile import changed
from pallas_debug.profile.advice import MIN_SAVING, AdviceRule, Candidate
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.profile.costs import CostClass, Costs, class_of
from pallas_debug.profile.whatif import WhatIf, step_loops
from pallas_debug.quantities import percent

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

MIN_BLOCK = 8
"""Minimum size of a dimension along which a block is enlarged: the rows of a chip's tile. A smaller
one is a batch, such as the heads of jax's flash attention."""

SEARCHED_STEPS = 256
"""Maximum steps to simulate for each of several changes that are compared."""

MAX_GROWTH = 4
"""Maximum factor by which a block grows along an axis if it can grow along several: long narrow
blocks load matrices for few rows, which the schedule of square ones does not show (jax's gmm)."""

MAX_ALONE = 8
"""The same where blocks can grow along one axis only, as in MaxText's ragged attention."""

MAX_VMEM = 0.9
"""Maximum share of the VMEM that proposed blocks take. The rest is for spills, which are not
simulated: jax's matmul in blocks of 1,024 takes all of it on v5e, and is refused."""

OVERLAPPED = 4
"""Iterations of a loop that may overlap."""


# Changes of blocks and grid


def _larger_blocks(profile: Profile) -> Iterator[Candidate]:
    """Double blocks along the axis that saves most, while that saves a tenth of what is left."""
    blocks = profile.blocks
    if blocks is None:
        return
    followers = _followers(blocks)
    limit = MAX_GROWTH if len(followers) > 1 else MAX_ALONE
    factors: dict[int, int] = {}
    best: WhatIf | None = None
    while True:
        tried = [
            (found, doubled)
            for axis in followers
            for doubled in [{**factors, axis: 2 * factors.get(axis, 1)}]
            if doubled[axis] <= limit
            if (found := _scaled(profile, blocks, doubled, followers)) is not None
        ]
        found, doubled = min(tried, key=lambda t: -t[0].saved, default=(None, factors))
        least = (best.cycles.value if best else profile.cycles.total.value) or 0
        if found is None or (found.cycles.value or 0) > (1 - MIN_SAVING) * least:
            break
        best, factors = found, doubled
    if best is None:
        return
    costs = profile.costs
    operand, _ = followers[max(factors, key=lambda axis: factors[axis])][0]
    assumed = f", if the block of {', '.join(best.assumed)} changes at every step"
    yield Candidate(
        source=_spec(profile, operand.name),
        operand=operand.name,
        message=(
            f"of the cycles of {blocks.points:,} grid steps, "
            f"{_share(costs.where(reason='result'), costs)} wait for results, "
            f"{_share(costs.where(reason='copy'), costs)} wait for copies, and "
            f"{_share(costs.where(reason='overhead'), costs)} are loops and steps"
        ),
        remedy=f"use larger blocks: {best.change}{assumed if best.assumed else ''}",
        what_if=best,
        cells=costs.cells,
    )


_Followers = dict[int, list[tuple[OperandBlocks, int]]]


def _followers(blocks: BlockMap) -> _Followers:
    """Return the operands and dimensions that follow each axis along which blocks can grow."""
    found: _Followers = {}
    for operand in blocks.pipelined:
        for dimension in range(len(operand.dimensions)):
            axis = changed.axis_of(blocks, operand, dimension)
            if axis is not None and blocks.grid[axis] > 1:
                found.setdefault(axis, []).append((operand, dimension))
    return {
        axis: parts
        for axis, parts in found.items()
        if any(operand.kind == "input" for operand, _ in parts)
        and all(operand.dimensions[n].size >= MIN_BLOCK for operand, n in parts)
    }


def _scaled(
    profile: Profile, blocks: BlockMap, factors: dict[int, int], followers: _Followers
) -> WhatIf | None:
    sizes = {}
    for axis, factor in factors.items():
        operand, n = followers[axis][0]
        sizes[operand.name, n] = operand.dimensions[n].size * factor
    text = ", ".join(f"{name}[{n}]={size}" for (name, n), size in sizes.items())
    try:
        larger = changed.resized(blocks, sizes)
        found = profile.simulator.simulated(larger, text, max_steps=SEARCHED_STEPS)
    except UsageError:  # does not divide the array, or does not fit VMEM
        return None
    limit = profile.simulator.vmem_limit.value
    fits = found.vmem is None or limit is None or found.vmem <= MAX_VMEM * limit
    return found if fits else None


# Classes of instructions


@dataclass(frozen=True)
class _OfClass:
    """Rule about a class of instructions in a loop.

    Attributes:
      does: what the instructions do, after "of the cycles".
    """

    kind: CostClass
    does: str

    def __call__(self, profile: Profile) -> Iterator[Candidate]:
        costs = profile.costs.where(kind=self.kind)
        for loop in {cell.loop for cell in costs.cells}:
            cells = costs.where(loop=loop)
            if cells.total < MIN_SAVING * profile.costs.total:
                continue
            source = next((line for line, _ in cells.lines()), None)
            yield Candidate(
                source=source,
                message=(
                    f"{_share(cells, profile.costs)} of the cycles {self.does}{_in(profile, loop)}"
                ),
                remedy=_idiom(profile, source, self.kind),
                what_if=profile.simulator.without(self.kind, loop),
                cells=cells.cells,
            )


def _waiting_loops(profile: Profile) -> Iterator[Candidate]:
    steps = step_loops(profile)
    for loop in profile.schedule.loops:
        cells = profile.costs.where(loop=loop.number)
        shared = Costs(cells=tuple(c for c in cells.cells if c.reason in ("result", "overhead")))
        if loop.number in steps or shared.total < MIN_SAVING * profile.costs.total:
            continue
        yield Candidate(
            source=next((line for line, _ in shared.lines()), None),
            message=(
                f"{_share(shared, profile.costs)} of the cycles wait for results or control the "
                f"loop{_in(profile, loop.number)}"
            ),
            what_if=profile.simulator.overlapped(loop.number, OVERLAPPED),
            cells=shared.cells,
        )


IDIOMS: tuple[tuple[CostClass, str, str], ...] = (
    ("XLU", ".xlane", "reduce over lanes once, after the loop: accumulate rows of 128 lanes"),
    ("XLU", "vrot", "a sum of n rolled copies takes log2(n) rolls: roll by 1, 2, 4, … and add"),
    ("XLU", "vxpose", "contract over the other dimension (dot_general), or pass it transposed"),
    ("move", "vrot", "give each half of a rotation its own operand, or roll whole registers"),
)
"""Remedies by class and part of an opcode of the instructions at a line."""


def _idiom(profile: Profile, source: SourceLine | None, kind: CostClass) -> str | None:
    if source is None:
        return None
    opcodes = {
        instruction.opcode
        for bundle, traces in zip(profile.schedule.bundles, profile.tracing.traces, strict=True)
        for instruction, trace in zip(bundle.instructions, traces, strict=True)
        if trace.chain and trace.chain[0].place == source.place and class_of(instruction) == kind
    }
    return next(
        (
            hint
            for of, part, hint in IDIOMS
            if of == kind and any(part in opcode for opcode in opcodes)
        ),
        None,
    )


def _share(part: Costs, whole: Costs) -> str:
    return percent(part.total / whole.total)


def _in(profile: Profile, loop: int | None) -> str:
    if loop is None:
        return ""
    return f" in the loop at bundle {profile.schedule.loops[loop].start:#x}"


def _spec(profile: Profile, name: str) -> SourceLine | None:
    """Return the line of an operand's spec."""
    operands = profile.kernel.operands if profile.kernel is not None else ()
    return next((o.block_source for o in operands if o.name == name and o.block_source), None)


_AT_MOST = "at most: the bundles with such instructions and the waits for their results, as far as "
_AT_MOST += "the busiest of the other units allows"

RULES: tuple[AdviceRule, ...] = (
    AdviceRule(
        name="small-blocks",
        title="Steps that are too short, or fetch blocks again and again",
        saving="simulated step by step",
        remedy="use larger blocks",
        find=_larger_blocks,
    ),
    AdviceRule(
        name="waiting-loop",
        title="A loop that waits for results of its own iteration",
        saving=f"at most what {OVERLAPPED} overlapping iterations save",
        remedy=(
            "let iterations overlap: unroll the loop (fori_loop(…, unroll=4)), or "
            "process more rows in an iteration"
        ),
        find=_waiting_loops,
    ),
    AdviceRule(
        name="spills",
        title="Registers that are stored to VMEM and loaded again",
        saving=_AT_MOST,
        remedy="process fewer rows or columns at a time, so that fewer values live at once",
        find=_OfClass("spill", "store and reload registers"),
    ),
    AdviceRule(
        name="cross-lane",
        title="Reductions, transposes and rotations across lanes",
        saving=_AT_MOST,
        remedy="move work from lanes to rows: reduce over lanes once, at the end",
        find=_OfClass("XLU", "work across lanes"),
    ),
    AdviceRule(
        name="matrix-loads",
        title="Loading matrices into the matrix units",
        saving=_AT_MOST,
        remedy="multiply more rows by each matrix: a larger block of the left operand",
        find=_OfClass("matrix load", "load matrices into the matrix units"),
    ),
    AdviceRule(
        name="moves",
        title="Data moved between lanes and sublanes to change its layout",
        saving=_AT_MOST,
        remedy=(
            "keep values in one layout: avoid reshapes, and broadcasts of columns, in the loop"
        ),
        find=_OfClass("move", "move data within and between registers"),
    ),
    AdviceRule(
        name="conversions",
        title="Conversions between types",
        saving=_AT_MOST,
        remedy="convert once, outside of the loop, or compute in one type",
        find=_OfClass("conversion", "convert between types"),
    ),
)
"""All rules."""
