"""Cost of a grid that skips blocks, simulated step by step because averages are too inaccurate.

A step at which an index map stays at the block of another step is assumed to do nothing. Such steps
are short, so the kernel waits for blocks that are fetched during them, however much the other steps
compute.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pallas_debug.profile.advice.pipelines import (
    PipelineCost,
    followed,
    grows,
)
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks, grid_point
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand

MAX_STEPS = 4096
"""Maximum steps to simulate; the remaining steps are assumed to be similar."""

Point = tuple[int, ...]


def has_skips(blocks: BlockMap) -> bool:
    """Return whether an index map skips blocks: it mostly follows an axis, but is not affine."""
    return any(_skips(d, blocks.grid) for o in blocks.pipelined for d in o.dimensions)


def stepped(
    subject: AdviceSubject,
    blocks: BlockMap,
    cost: PipelineCost,
    idle: float,
) -> PipelineCost | None:
    """Simulate the steps of a grid to find its bytes and cycles; None if the blocks are not known.

    Args:
      cost: cost to refine, with the factors by which the blocks are enlarged.
      idle: cycles of each step without vector work, including steps that do nothing.
    """
    step, rate = subject.step, subject.bytes_per_cycle
    if step is None or not rate:
        return None
    moving = [o for o in blocks.pipelined if o.name not in subject.resident]
    now, larger = _Grid(blocks, {}), _Grid(blocks, cost.factors)
    busy = now.busy_steps
    if not busy:
        return None
    # Scale averages over all steps to averages over the steps that do something.
    share = now.points / busy
    work = max(step.compute - idle, 0.0) * share * math.prod(cost.factors.values())
    compute = {True: idle + work, False: idle}
    count = min(larger.points, MAX_STEPS)

    def fetched(size: float) -> tuple[float, float]:
        return subject.latency, size / rate

    def written(size: float) -> tuple[float, float]:
        return subject.write_latency, size / rate

    operands = []
    for number, operand in enumerate(moving):
        bytes_of = functools.partial(_same, operand.block_bytes * larger.growth(operand))
        operands.append(
            PipelineOperand(
                lane=number,
                direction="in" if operand.kind == "input" else "out",
                buffers=operand.buffers,
                reads_back=False,
                block=larger.block_of(operand),
                size=bytes_of,
                fetch=fetched,
                write=written,
            )
        )
    pipeline = Pipeline(
        operands,
        steps=larger.points,
        compute=lambda n: compute[larger.is_busy(n)],
        keeps=lambda _: False,
    )
    run = pipeline.run(0, count)
    rest = larger.points / count
    moved = sum(n * o.size(None) for n, o in zip(run.counts, operands, strict=True))
    return replace(cost, moved=round(moved * rest), cycles=run.end * rest / subject.cores)


def _same(size: float, block: object) -> float:
    return size


def _skips(dimension: BlockIndex, grid: tuple[int, ...]) -> bool:
    return dimension.strides is None and followed(dimension, grid) is not None


@dataclass
class _Grid:
    """Grid with larger blocks, where each step replaces several steps of the current grid."""

    blocks: BlockMap
    factors: Mapping[int, int]

    def __post_init__(self) -> None:
        self.grid = tuple(n // self.factors.get(a, 1) for a, n in enumerate(self.blocks.grid))
        self.points = math.prod(self.grid)
        dimensions = [d for o in self.blocks.pipelined for d in o.dimensions]
        self._skipping = [d for d in dimensions if _skips(d, self.blocks.grid)]
        self._known: dict[tuple[int, Point], tuple[int, bool]] = {}

    @property
    def busy_steps(self) -> float:
        """Number of steps that do something."""
        count = min(self.points, MAX_STEPS)
        return sum(map(self.is_busy, range(count))) * self.points / count

    def is_busy(self, step: int) -> bool:
        point = grid_point(self.grid, step)
        return all(self._index(d, point)[1] for d in self._skipping)

    def growth(self, operand: OperandBlocks) -> int:
        """Return the factor by which the blocks of an operand are larger."""
        axes = [a for a, f in self.factors.items() if f > 1 and grows(operand, a, self.blocks.grid)]
        return math.prod(self.factors[axis] for axis in axes)

    def block_of(self, operand: OperandBlocks) -> Callable[[int], tuple[int, ...]]:
        """Return a function from a step to an operand's block."""
        return lambda step: tuple(
            self._index(d, grid_point(self.grid, step))[0] for d in operand.dimensions
        )

    def _index(self, dimension: BlockIndex, point: Point) -> tuple[int, bool]:
        """Return the index of a block, and whether it follows the grid at this step."""
        if dimension.strides is not None:
            return sum(map(int.__mul__, point, dimension.strides)), True
        key = id(dimension), tuple(point[axis] for axis in dimension.axes)
        if key not in self._known:
            self._known[key] = self._skipping_index(dimension, point)
        return self._known[key]

    def _skipping_index(self, dimension: BlockIndex, point: Point) -> tuple[int, bool]:
        grid = self.blocks.grid
        own = followed(dimension, grid)
        values = dimension.values or ()
        choices = [
            range(point[axis] * f, (point[axis] + 1) * f)
            for axis in dimension.axes
            for f in (self.factors.get(axis, 1),)
        ]
        first = None
        for place in itertools.product(*choices):
            position = 0
            for axis, index in zip(dimension.axes, place, strict=True):
                position = position * grid[axis] + index
            value = values[position]
            first = value if first is None else first
            if own is None or value == place[dimension.axes.index(own)]:
                return (value if own is None else point[own]), True
        assert own is not None
        return (first or 0) // self.factors.get(own, 1), False
