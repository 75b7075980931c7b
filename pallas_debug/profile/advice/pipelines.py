"""Cost model of a kernel's pipeline: bytes that its operands move, and the effect of changes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks
from pallas_debug.profile.units import is_vector

Axes = frozenset[int]
"""Numbers of axes of the grid."""


_PARAMETER = re.compile(r"(%[\w$.-]+): i32\b")

FOLLOWED = 0.5
"""Minimum share of the grid points at which an index that skips blocks equals that of its axis."""


def idle_bundles(subject: AdviceSubject, count: float) -> float:
    """Return the average number of bundles without vector instructions in each of `count` steps."""
    busy = {p.bundle for p in subject.instructions if is_vector(p.opcode)}
    if not subject.executions or not count:
        return 0.0
    return sum(w for at, w in enumerate(subject.executions) if at not in busy) / count


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
    module = subject.mosaic
    lines = () if module is None else module.lines
    first = next((n for n, line in enumerate(lines) if "func.func" in line), None)
    if module is None or first is None:
        return None
    parameters = _PARAMETER.findall(lines[first].partition(" attributes ")[0])
    if len(parameters) != len(blocks.grid):
        return None
    read = {
        value.name
        for line, name in enumerate(module.names)
        if name is not None and line > first
        for operation in module.operations(line)
        for value in operation.operands
    }
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
) -> PipelineCost | None:
    """Estimate the cost of larger blocks; None if they do not simply follow the grid.

    Args:
      overhead: cycles of a step that do not grow with its blocks.
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
    work *= _work(blocks, factors)
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


def size_text(count: float) -> str:
    """Format a number of bytes: `9.1 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
