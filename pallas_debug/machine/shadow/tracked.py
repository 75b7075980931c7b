"""A thread's progress through its grid, and the output block of each grid point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.machine.grid import Window

Point = tuple[int, ...]


@dataclass(eq=False, slots=True)
class LaneNumbers:
    """Write numbers by the coordinates of the writing grid points along parallel axes.

    Attributes:
      lanes: successive values of these coordinates.
      starts: first number with each value.
      since: the last of `starts`.
    """

    lanes: list[Point] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    since: int = 0

    def point_begins(self, lane: Point, number: int) -> None:
        if self.lanes and self.lanes[-1] == lane:
            return
        self.lanes.append(lane)
        self.starts.append(number)
        self.since = number

    def is_other(self, numbers: Any) -> Any:
        """Mask of the numbers of grid points with other coordinates."""
        is_own = np.array([lane == self.lanes[-1] for lane in self.lanes])
        return ~is_own[np.searchsorted(self.starts, numbers, "right") - 1]


@dataclass(eq=False, slots=True)
class TrackedThread:
    """Position of a thread, in numbers of writes.

    Attributes:
      outputs: outputs that the pipeline around the kernel writes.
      blocks: block of each output window at each grid point so far.
      starts: first number of the current visit of each output's block.
      points: grid points so far.
      of_point: first number of the current grid point.
      lanes: write numbers by the coordinates along parallel axes.
      is_watched: whether the grid point is selected for checking.
    """

    windows: list[Window]
    outputs: list[Window]
    blocks: list[list[Point]]
    starts: list[int]
    points: list[Point] = field(default_factory=list)
    of_point: int = 2
    lanes: LaneNumbers = field(default_factory=LaneNumbers)
    is_watched: bool = True

    def keeps(self, name: str) -> bool:
        """Return whether a buffer may contain values left by an earlier grid point."""
        own = next((i for i, w in enumerate(self.outputs) if w.operand.name == name), None)
        if own is None:
            return len(self.points) > 1
        return any(one == other for one, other in itertools.pairwise(self.blocks[own]))

    def visits(self, window: Window, element: Point) -> list[Point]:
        """Grid points whose block of an output contains an element."""
        blocks = self.blocks[self.outputs.index(window)]
        holding = set()
        for block in set(blocks):
            outer, _ = window.bounds(block)
            if all(n.start <= i < n.stop for n, i in zip(outer, element, strict=True)):
                holding.add(block)
        return [p for p, block in zip(self.points, blocks, strict=True) if block in holding]


def missing_steps(
    grid: Sequence[int | None], thread: TrackedThread | None, window: Window, mask: Any
) -> dict[int, float]:
    """Count unvisited blocks of an output, by dimension, if they are the last ones.

    A map that returns the same block everywhere does not lack steps: as many blocks are visited
    as the grid has along one of its axes. Nor does one that uses another axis than the one that has
    as many steps as there are blocks, or lacks an axis.

    Args:
      mask: elements that were not written.
    """
    visited = () if thread is None else thread.blocks[thread.outputs.index(window)]
    blocks = np.array(sorted(set(visited)))
    counts = blocks.max(axis=0, initial=-1) + 1
    if not blocks.size or len(blocks) != counts.prod():
        return {}
    sizes = [int(c) * unit for c, unit in zip(counts, window.spec.unit, strict=True)]
    short = [i for i, n in enumerate(mask.shape) if sizes[i] < n]
    steps = {size for size in grid if size != 1} or {1}
    if mask[tuple(map(slice, sizes))].any() or not steps.issuperset(counts[short].tolist()):
        return {}
    unused = [size for size in grid if size is not None]
    for count in counts.tolist():
        if count in unused:
            unused.remove(count)
    if any(
        _is_for_other_axes(-(-mask.shape[i] // window.spec.unit[i]), int(counts[i]), unused)
        for i in short
    ):
        return {}
    return {i: (mask.shape[i] - sizes[i]) / window.spec.unit[i] for i in short}


def _is_for_other_axes(blocks: int, steps: int, unused: Sequence[int]) -> bool:
    """Return whether grid axes that an index map does not use have as many steps as it lacks.

    Args:
      blocks, steps: blocks along a dimension, and how many of them the map returns.
      unused: sizes of these axes.
    """
    sizes = [size for size in unused if size > 1]
    groups = itertools.chain.from_iterable(
        itertools.combinations(sizes, n) for n in range(1, len(sizes) + 1)
    )
    return any(math.prod(group) * count == blocks for group in groups for count in (1, steps))
