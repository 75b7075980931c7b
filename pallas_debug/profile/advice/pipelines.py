"""Cost model of a kernel's pipeline: bytes that its operands move, and the effect of changes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallas_debug.profile import units
from pallas_debug.profile.advice.moves import is_one_after_another, is_vector_instruction
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks

Axes = frozenset[int]
"""Numbers of axes of the grid."""

Powers = tuple[int, ...]
"""Grid axes along which work grows, in order, each repeated as often as it multiplies the work:
(1, 1) for scores of a block with itself, whose rows and columns both follow axis 1."""

_PARAMETER = re.compile(r"(%[\w$.-]+): i32\b")

FOLLOWED = 0.5
"""Minimum share of the grid points at which an index that skips blocks equals that of its axis."""

FILLED = 0.75
"""Share of its capacity that the busiest unit can reach in a long schedule."""

MAX_USED = 0.45
"""Maximum use of the busiest unit in steps whose work is reported as not overlapping."""

MAX_SHORT = 2_000
"""Maximum cycles of a step that counts as short."""

MIN_FIXED = 0.4
"""Minimum share of a step's work that does not grow with its blocks, so that work that does grow is
executed while the former waits. Cross entropy over 128 and 256 columns, in steps of 870 to 4,550
cycles, takes 0.87 to 1.08 times the cycles that are estimated with this for blocks of 1,024."""

MAX_CHAIN = 12
"""Maximum instructions of a line in a dependency chain; a polynomial does not exceed this."""


@dataclass(frozen=True, kw_only=True)
class StepLatency:
    """Cycles that a step, or an iteration, loses because it is too short.

    Attributes:
      cycles: cycles of a step in which vector work waits for earlier vector work.
      unit: name of the busiest unit.
      used: share of that unit's capacity that is used in the bundles that run.
    """

    cycles: float
    unit: str
    used: float


def idle_bundles(subject: AdviceSubject, count: float) -> float:
    """Return the average number of bundles without vector instructions in each of `count` steps."""
    busy = {p.bundle for p in subject.instructions if is_vector_instruction(p.opcode)}
    if not subject.executions or not count:
        return 0.0
    return sum(w for at, w in enumerate(subject.executions) if at not in busy) / count


def latency_of(
    subject: AdviceSubject, count: float, compute: float, idle: float
) -> StepLatency | None:
    """Compare the cycles of a step with those that its busiest unit needs.

    Args:
      count: number of steps.
      compute: cycles of a step.
      idle: cycles of a step without vector work.
    """
    table = subject.schedule.table
    if table is None or not count or not subject.executions:
        return None
    busiest = max(
        (
            (sum(map(operator.mul, subject.executions, table.column(name) or ())) / capacity, name)
            for name, capacity in zip(table.names, table.capacity, strict=True)
            if name in units.VECTOR and capacity
        ),
        default=None,
    )
    if busiest is None:
        return None
    needed, used = busiest[0] / count, busiest[0] / subject.executed
    if used > MAX_USED or compute > MAX_SHORT:
        return None
    if subject.longest_chain(is_one_after_another) > MAX_CHAIN:
        return None  # a recurrence: each row of a larger block waits for the previous row
    needed = max(needed, subject.matrix_cycles / count)
    stalled = max(compute - idle - needed / FILLED, 0.0)
    return StepLatency(cycles=stalled, unit=busiest[1], used=used)


@dataclass(frozen=True, kw_only=True)
class PipelineCost:
    """Cost of a kernel with its blocks enlarged along some axes of the grid.

    Attributes:
      factors: factor by which blocks are enlarged, by axis.
      moved: bytes copied between HBM and VMEM.
      steps: number of grid points.
      cycles: estimated cycles of the kernel, with copies overlapping computation.
      vmem: bytes of VMEM used.
    """

    factors: Mapping[int, int]
    moved: int
    steps: int
    cycles: float
    vmem: int


@dataclass(frozen=True, kw_only=True)
class WorkGrowth:
    """Work of a step by the axes along which it grows.

    Attributes:
      shares: share of the bundles with vector work that grows along these axes.
      units: by unit, its work in cycles of all steps if it were never idle.
    """

    shares: Mapping[Powers, float] = field(default_factory=dict)
    units: Mapping[str, Mapping[Powers, float]] = field(default_factory=dict)

    def share(self, factors: Mapping[int, int], work: float) -> float:
        """Return the work of all steps with larger blocks, relative to the current blocks.

        Bundles are shared by work that grows and work that does not. If most of it does not grow,
        what is added to a step is executed while that work waits, as far as the units allow.

        Args:
          factors: factor by which blocks are enlarged, by axis.
          work: current cycles of all steps that grow with the blocks.
        """
        if not work or not self.shares:
            return 1.0
        whole = math.prod(factors.values())

        def grown(parts: Mapping[Powers, float], factors: Mapping[int, int]) -> float:
            return sum(
                part * math.prod(factors.get(axis, 1) for axis in powers)
                for powers, part in parts.items()
            )

        share = grown(self.shares, factors) / whole
        now = max((grown(unit, {}) for unit in self.units.values()), default=0.0) / work
        then = max((grown(unit, factors) for unit in self.units.values()), default=0.0) / work
        then = then / FILLED / whole
        if 0 < now <= MAX_USED and self._fixed(factors) >= MIN_FIXED:
            share = min(share, (1 - now / FILLED) / whole + then)
        return max(share, min(then, 1.0))

    def _fixed(self, factors: Mapping[int, int]) -> float:
        """Return the share of the bundles whose work does not grow with the blocks."""
        axes = {axis for axis, factor in factors.items() if factor > 1}
        return sum(part for powers, part in self.shares.items() if axes.isdisjoint(powers))


UNKNOWN_GROWTH = WorkGrowth()
"""Growth of work that is assumed to grow along every axis."""


def depends(operand: OperandBlocks, axis: int) -> bool | None:
    """Return whether an operand's block changes along an axis of the grid; None if unknown."""
    if operand.unknown is not None:
        return None
    for dimension in operand.dimensions:
        if dimension.strides is not None:
            if dimension.strides[axis]:
                return True
        elif dimension.values is None:
            return None
        elif axis in dimension.axes:
            return True
    return False


def has_own_blocks(operand: OperandBlocks, axis: int) -> bool:
    """Return whether an operand has different blocks for each index of an axis."""
    return any(
        dimension.kind != "element"
        and dimension.strides is not None
        and [n for n, stride in enumerate(dimension.strides) if stride] == [axis]
        for dimension in operand.dimensions
    )


def ordered_axes(subject: AdviceSubject, blocks: BlockMap) -> frozenset[int] | None:
    """Axes of the grid on which the kernel's work depends; None if that is not known.

    An axis counts if the kernel reads its index, or if an output does not depend on it, so that the
    output is accumulated along that axis.
    """
    program = subject.program
    if not program.operations:
        return None
    head = program.module.lines[program.span[0]].partition(" attributes ")[0]
    parameters = _PARAMETER.findall(head)
    if len(parameters) != len(blocks.grid):
        return None
    read = {o for operation in program.operations for o in operation.operands}
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    return frozenset(
        axis
        for axis, name in enumerate(parameters)
        if name in read or any(not depends(o, axis) for o in outputs)
    )


def simple_dimension(operand: OperandBlocks, axis: int, grid: tuple[int, ...]) -> int | None:
    """Return the only dimension whose block index is that of the axis; None if there is none.

    Index maps that skip blocks count as well: at most grid points their index is that of the axis,
    and where the step does nothing, it is that of another block.
    """
    found = []
    for n, dimension in enumerate(operand.dimensions):
        if dimension.strides is None:
            own = followed(dimension, grid)
            if own == axis:
                found.append(n)
            elif own is None and axis in dimension.axes:
                return None
        elif dimension.strides[axis]:
            others = [s for i, s in enumerate(dimension.strides) if i != axis and s]
            if others or dimension.strides[axis] != 1 or dimension.kind == "element":
                return None
            found.append(n)
    return found[0] if len(found) == 1 else None


def grows(operand: OperandBlocks, axis: int, grid: tuple[int, ...]) -> bool | None:
    """Return whether an operand's blocks grow with blocks along an axis; None if unclear."""
    if not depends(operand, axis):
        return depends(operand, axis)
    if simple_dimension(operand, axis, grid) is not None:
        return True
    skips = [d for d in operand.dimensions if d.strides is None and axis in d.axes]
    others = [d for d in operand.dimensions if d.strides is not None and d.strides[axis]]
    if others or any(followed(d, grid) is None for d in skips):
        return None
    return False  # the axis only decides which blocks are skipped


def followed(dimension: BlockIndex, grid: tuple[int, ...]) -> int | None:
    """Return the axis whose index a non-affine block index equals at most grid points.

    None if there are two such axes: a product of two indices is 0 wherever one of them is 0, so it
    equals that index there.
    """
    if dimension.values is None or dimension.kind != "blocked":
        return None
    shape = [grid[axis] for axis in dimension.axes]
    found = []
    for place, axis in enumerate(dimension.axes):
        inner = math.prod(shape[place + 1 :])
        same = sum(
            value == position // inner % shape[place]
            for position, value in enumerate(dimension.values)
        )
        if same >= FOLLOWED * len(dimension.values):
            found.append(axis)
    return found[0] if len(found) == 1 else None


def _work(blocks: BlockMap, factors: Mapping[int, int]) -> float:
    """Return the work relative to the current blocks: fewer larger blocks can be skipped."""
    most = 1.0
    for operand in blocks.pipelined:
        for dimension in operand.dimensions:
            axis = followed(dimension, blocks.grid) if dimension.strides is None else None
            if axis is None or dimension.values is None:
                continue
            shape = [blocks.grid[n] for n in dimension.axes]
            sizes = [factors.get(n, 1) for n in dimension.axes]
            done, larger = 0, set()
            for position, value in enumerate(dimension.values):
                point = [
                    position // math.prod(shape[n + 1 :]) % size for n, size in enumerate(shape)
                ]
                if value == point[dimension.axes.index(axis)]:
                    done += 1
                    larger.add(tuple(i // size for i, size in zip(point, sizes, strict=True)))
            most = max(most, len(larger) * math.prod(sizes) / done)
    return most


def copies(operand: OperandBlocks, grid: tuple[int, ...]) -> int | None:
    """Count the copies of an operand's blocks over the grid, in grid order; None if unknown.

    A block is copied whenever it differs from the block of the previous step: at every step of the
    innermost axis that it depends on, and of all axes outside of that axis.
    """
    needed = [depends(operand, axis) for axis in range(len(grid))]
    if any(d is None for d in needed):
        return None
    inner = max((axis for axis, d in enumerate(needed) if d and grid[axis] > 1), default=-1)
    return math.prod(grid[: inner + 1])


def repeated_copies(operand: OperandBlocks, grid: tuple[int, ...]) -> int:
    """Count the copies of blocks that have already been copied; 0 if unknown."""
    count = copies(operand, grid)
    return count - operand.total if count is not None and operand.total else 0


def _made(operand: OperandBlocks, blocks: BlockMap) -> float | None:
    """Return the share of the copies that are actually made, as an index map may skip blocks."""
    count = copies(operand, blocks.grid)
    if not count or operand.visits is None:
        return None if count is None else 1.0
    return min(operand.visits.copies / count, 1.0)


@dataclass
class _Copies:
    """Fetches or write-backs of all steps.

    Attributes:
      latency: cycles that each copy takes in addition to the transfer of its bytes.
      count: number of copies.
      size: bytes of all copies.
    """

    latency: float
    count: int = 0
    size: float = 0.0

    def waiting(self, compute: float, other: _Copies, rate: float) -> float:
        """Return the cycles that steps wait for these copies.

        A step starts the fetch for the next step before it waits for its own, and its write-back
        before it waits for that of the previous step. Two copies are in flight, so two steps take
        at least the time of a copy and one computation. Copies in both directions share HBM.

        Args:
          compute: compute cycles of a step.
          other: copies in the other direction. Those of the steps in which these copies run share
            HBM with them.
          rate: bytes per cycle.
        """
        if not self.count:
            return 0.0
        beside = other.size / max(other.count, self.count)
        copy = self.latency + (self.size / self.count + beside) / rate
        return self.count * max((copy + compute) / 2 - compute, 0.0)


def enlarged(
    subject: AdviceSubject,
    blocks: BlockMap,
    factors: Mapping[int, int],
    overhead: float,
    growth: WorkGrowth = UNKNOWN_GROWTH,
) -> PipelineCost | None:
    """Estimate the cost of larger blocks; None if they do not simply follow the grid.

    Args:
      overhead: cycles of a step that do not grow with its blocks.
      growth: growth of all other cycles.
    """
    step, rate = subject.step, subject.bytes_per_cycle
    if step is None or not rate or subject.vmem is None:
        return None
    grid = tuple(size // factors.get(axis, 1) for axis, size in enumerate(blocks.grid))
    moved = 0.0
    windows = now = 0
    fetched, written = _Copies(subject.latency), _Copies(subject.write_latency)
    for operand in blocks.pipelined:
        scale = 1
        for axis, factor in factors.items():
            larger = grows(operand, axis, blocks.grid) if factor > 1 else False
            if larger is None:
                return None
            scale *= factor if larger else 1
        count, made = copies(operand, grid), _made(operand, blocks)
        if count is None or made is None:
            return None
        count = max(round(count * made), 1)
        windows += operand.block_bytes * operand.buffers * scale
        now += operand.block_bytes * operand.buffers
        if operand.name in subject.resident:
            continue
        moved += count * operand.block_bytes * scale
        of_kind = fetched if operand.kind == "input" else written
        of_kind.size += count * operand.block_bytes * scale
        if count > 1:
            of_kind.count = max(of_kind.count, count)
    # Memory other than windows (scratch, spills) is assumed to grow with the blocks.
    rest = max(subject.vmem - now, 0) * math.prod(factors.values())
    steps = math.prod(grid)
    work = blocks.points * max(step.compute - overhead, 0.0)
    work *= _work(blocks, factors) * growth.share(factors, work / subject.cores)
    compute = work + steps * overhead
    waiting = max(
        fetched.waiting(compute / steps, written, rate),
        written.waiting(compute / steps, fetched, rate),
    )
    running = max(compute + waiting, moved / rate) / subject.cores
    # The first fetch and the last write-back do not overlap with anything.
    ends = windows / 2 / rate + subject.latency
    return PipelineCost(
        factors=dict(factors),
        moved=round(moved),
        steps=steps,
        cycles=running + ends,
        vmem=windows + rest,
    )


def running_in_bursts(subject: AdviceSubject, blocks: BlockMap, without: str) -> float | None:
    """Estimate the cycles of all steps where some copy more blocks than others; None if unknown.

    A step that fetches a block that the previous steps did not need waits for its latency and its
    bytes, unless its computation takes longer.

    Args:
      without: name of an operand to leave out, as if it were not copied.
    """
    step, rate = subject.step, subject.bytes_per_cycle
    if step is None or not rate:
        return None
    moving = [o for o in blocks.pipelined if o.name not in subject.resident and o.name != without]
    varying = [axis for axis, size in enumerate(blocks.grid) if size > 1]
    total, steady, before = step.compute, None, 1
    times = []
    for place, axis in enumerate(varying):
        # Steps in which this axis advances, and all axes inside of it restart.
        count, before = before * (blocks.grid[axis] - 1), before * blocks.grid[axis]
        inner = varying[place:]
        copied = sum(o.block_bytes for o in moving if any(depends(o, n) for n in inner))
        times.append((count, copied / rate))
        steady = copied / rate
    for count, transfer in times:
        latency = subject.latency if steady is not None and transfer > steady else 0.0
        total += count * max(step.compute, transfer + latency)
    # The first fetches and the last write-back do not overlap with anything.
    ends = sum(o.block_bytes for o in moving) / rate
    return total / subject.cores + ends


def size_text(count: float) -> str:
    """Format a number of bytes: `9.1 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
