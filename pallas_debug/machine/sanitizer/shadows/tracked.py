"""A thread's progress through its grid and pipelines, and the output block of each moment.

A *moment* is a grid point up to its first `emit_pipeline`, or an iteration of one together with
what follows up to the next. The blocks of an output in HBM are what the kernel copies there: all
moments since the previous copy belong to the block that the next copy fills.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording.contents import is_for_other_axes
from pallas_debug.machine.grid import Window
from pallas_debug.machine.sanitizer.shadows import reach
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.shadow import WriteRecord
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]

Block = Point | str | None
"""Block index of an output, or the slices that are copied to one in HBM; None if there are none."""


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
      arrays: names of outputs in HBM that the kernel copies to.
      blocks: block of each output window at each grid point so far.
      starts: first number of the current visit of each output's block.
      array_starts: first number of the first moment after the last copy to each of `arrays`.
      copied: moments and slices of the copies to each of `arrays`.
      moments: position in `points` of the grid point of each moment so far.
      of_point: first number of the current grid point.
      of_moment: first number of the current moment.
      lanes: write numbers by the coordinates along parallel axes.
      has_carried: whether the grid point has read values written by an earlier one.
      begins_block: whether the grid point is the first of a block.
      is_watched: whether the grid point is selected for checking.
    """

    windows: list[Window]
    outputs: list[Window]
    arrays: list[str]
    blocks: list[list[Point]]
    starts: list[int]
    flow: ValueFlow
    points: list[Point] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)
    array_starts: dict[str, int] = field(default_factory=dict)
    copied: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    of_point: int = 2
    of_moment: int = 2
    lanes: LaneNumbers = field(default_factory=LaneNumbers)
    has_carried: bool = False
    begins_block: bool = True
    is_watched: bool = True
    _left: set[str] = field(default_factory=set)
    _reached: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _goes_to: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def moment(self) -> int:
        """Number of the current moment."""
        return len(self.moments) - 1

    @property
    def begins_row(self) -> bool:
        """True if more than the last axis along which the grid point moved has moved."""
        if len(self.points) < 2:
            return False
        before, here = self.points[-2:]
        return sum(a != b for a, b in zip(before, here, strict=True)) > 1

    @property
    def has_pipelines(self) -> bool:
        """True if any grid point had several moments."""
        return len(self.moments) > len(self.points)

    def keeps(self, name: str) -> bool:
        """Return whether a buffer may contain values left by an earlier grid point."""
        own = next((i for i, w in enumerate(self.outputs) if w.operand.name == name), None)
        if own is None:
            return len(self.points) > 1
        return any(one == other for one, other in itertools.pairwise(self.blocks[own]))

    def moment_begins(self, number: int) -> None:
        """Begin a moment of the last of `points`; `number` is that of the next write."""
        self.moments.append(len(self.points) - 1)
        self.of_moment = number
        for name in self._left:
            self.array_starts[name] = number
        self._left.clear()

    def copies_out(self, name: str, part: str) -> None:
        """Record the start of a copy to slices of an output in HBM."""
        self.copied.setdefault(name, []).append((self.moment, part))
        self._left.add(name)

    def outputs_of(self, name: str) -> tuple[int, ...]:
        """Outputs that receive an operand's values, or the operand itself; all if there are none.

        The numbers are positions in `outputs`, followed by those in `arrays`. Arrays are left out
        if there are other outputs.
        """
        if name not in self._reached:
            names = self.flow.reached(name) | {name}
            every = [*(w.operand.name for w in self.outputs), *self.arrays]
            windows = tuple(range(len(self.outputs)))
            arrays = tuple(range(len(self.outputs), len(every)))
            self._reached[name] = (
                tuple(i for i in windows if every[i] in names)
                or tuple(i for i in arrays if every[i] in names)
                or windows
                or arrays
            )
        return self._reached[name]

    def reaches_output(self, name: str) -> bool:
        """Return whether an operand's values go to an output."""
        return not self._all_outputs().isdisjoint(self._destinations(name))

    def may_reach(self, name: str, output: str) -> bool:
        """Return whether an operand's values may go to an output."""
        return output in self._destinations(name)

    def goes_into(self, name: str, store: OutputStore) -> bool:
        """Return whether a store's value is computed from an operand, or all of its stores are."""
        if name == store.name or not self.reaches_output(name):
            return True
        return name in store.sources or not store.sources.isdisjoint(self._destinations(name))

    def _all_outputs(self) -> frozenset[str]:
        return frozenset([*(w.operand.name for w in self.outputs), *self.arrays])

    def _destinations(self, name: str) -> frozenset[str]:
        """Names of the operands that an operand's values reach."""
        if name not in self._goes_to:
            self._goes_to[name] = self.flow.reached(name)
        return self._goes_to[name]

    def output_name(self, output: int) -> str:
        """Name of an output, by its number."""
        windows = len(self.outputs)
        if output < windows:
            return self.outputs[output].operand.name
        return self.arrays[output - windows]

    def since(self, name: str) -> int:
        """First number of these outputs' current visits: older writes were for other blocks."""
        return min(map(self.start_of, self.outputs_of(name)), default=0)

    def start_of(self, output: int) -> int:
        """First number of an output's current visit."""
        if output < len(self.outputs):
            return self.starts[output]
        return self.array_starts.get(self.output_name(output), 0)

    def blocks_at_moments(self, output: int) -> list[Block]:
        """The block of an output computed at each moment."""
        windows = len(self.outputs)
        if output < windows:
            return [self.blocks[output][position] for position in self.moments]
        found: list[Block] = []
        copies = self.copied.get(self.arrays[output - windows], [])
        for moment, group in itertools.groupby(copies, key=lambda copy: copy[0]):
            block = " and ".join(dict.fromkeys(part for _, part in group))
            found += [block] * (moment + 1 - len(found))
        return found + [None] * (len(self.moments) - len(found))

    def blocks_at_points(self, output: int) -> list[Block]:
        """The block of an output computed at each grid point, at its end."""
        last = dict(zip(self.moments, self.blocks_at_moments(output), strict=True))
        return [last[position] for position in range(len(self.points))]

    def is_in_one_block(self, window: Window, mask: np.ndarray[Any, Any]) -> bool:
        """Return whether all masked elements that are in a block of an output share one block."""
        found = [window.bounds(block)[0] for block in set(self.blocks[self.outputs.index(window)])]
        return sum(bool(mask[outer].any()) for outer in found) < 2

    def visits(self, window: Window, element: Point) -> list[Point]:
        """Grid points whose block of an output contains an element."""
        blocks = self.blocks[self.outputs.index(window)]
        holding = set()
        for block in set(blocks):
            outer, _ = window.bounds(block)
            if all(n.start <= i < n.stop for n, i in zip(outer, element, strict=True)):
                holding.add(block)
        return [p for p, block in zip(self.points, blocks, strict=True) if block in holding]


@dataclass(eq=False, slots=True)
class OutputStore:
    """A store to an output, or to a buffer that is copied to one.

    Attributes:
      name: name of the output.
      sources: other buffers from which its value is computed.
      moments: moments at which a thread ran it.
      last: its last run.
      before: moment before that run at which it ran last; -1 if there is none.
    """

    name: str
    sources: frozenset[str]
    last: WriteRecord
    before: int = -1
    moments: set[int] = field(default_factory=set)


class OutputStores:
    """Stores to outputs so far, by thread."""

    def __init__(self) -> None:
        self._stores: dict[tuple[int, int, str], OutputStore] = {}

    def __bool__(self) -> bool:
        return bool(self._stores)

    def add(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, name: str,
        written: WriteRecord,
    ) -> None:  # fmt: skip
        """Record a store to an output at the current moment."""
        key = thread.number, id(step), name
        store = self._stores.get(key)
        if store is None:
            made_of = {one.name for one in reach.sources(thread.frames, step.value.number)}
            sources = frozenset(made_of - {name})
            store = self._stores[key] = OutputStore(name, sources, written)
        store.moments.add(state.moment)
        if store.last.moment != written.moment:
            store.before = store.last.moment
        store.last = written

    def at(
        self, thread: int, moment: int, state: TrackedThread | None = None, name: str = ""
    ) -> bool:
        """Return whether there is one at a moment.

        Args:
          state: the thread, if only those count whose values are computed from the buffer `name`.
        """
        return any(
            number == thread
            and moment in store.moments
            and (state is None or state.goes_into(name, store))
            for (number, _, _), store in self._stores.items()
        )

    def is_repeated(
        self, thread: int, state: TrackedThread, name: str, since: WriteRecord | None
    ) -> bool:
        """Return whether values computed from a buffer were stored repeatedly since a write."""
        first = 0 if since is None else since.moment
        moments = {
            moment
            for (number, _, _), store in self._stores.items()
            if number == thread and state.goes_into(name, store)
            for moment in (store.before, store.last.moment)
            if moment >= first
        }
        return len(moments) > 1

    def latest(self, thread: int) -> int:
        """Return the moment of the last one of a thread; -1 if there is none."""
        own = (s.last.moment for (number, _, _), s in self._stores.items() if number == thread)
        return max(own, default=-1)

    def last(self, thread: int, state: TrackedThread, name: str) -> WriteRecord | None:
        """Return the last one whose value is computed from a buffer, or else that might be."""
        own = [store for (number, _, _), store in self._stores.items() if number == thread]
        found = [store for store in own if state.goes_into(name, store)]
        found = found or [store for store in own if state.may_reach(name, store.name)]
        return max((store.last for store in found), key=lambda one: one.number, default=None)


def begins_moment(step: ir.MachineStep) -> bool:
    """Return whether the iterations of a loop are moments."""
    return isinstance(step, ir.Loop) and step.of_pipeline


def steps_of_block(
    launch: Launch, points: Sequence[Point], blocks: Sequence[Point]
) -> tuple[int, ...] | None:
    """Axes along which an output's block stays the same; None if no axes determine that."""
    sizes = [max(point[axis] for point in points) + 1 for axis in range(len(launch.grid))]
    if len(points) != math.prod(sizes):
        return None  # the run was stopped
    rank = len(blocks[0])
    table = np.array(blocks, np.int64).reshape(*sizes, rank)
    steps = tuple(
        axis
        for axis, size in enumerate(sizes)
        if size > 1 and (table == table.take([0], axis)).all()
    )
    others = math.prod(size for axis, size in enumerate(sizes) if axis not in steps)
    return launch.numbers(steps) if len(set(blocks)) == others else None


def missing_steps(
    grid: Sequence[int | None], thread: TrackedThread | None, window: Window, mask: Any
) -> list[float]:
    """Count unvisited blocks of an output, if they are the last ones of a dimension.

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
        return []
    sizes = [int(c) * unit for c, unit in zip(counts, window.spec.unit, strict=True)]
    short = [i for i, n in enumerate(mask.shape) if sizes[i] < n]
    steps = {size for size in grid if size != 1} or {1}
    if mask[tuple(map(slice, sizes))].any() or not steps.issuperset(counts[short].tolist()):
        return []
    unused = [size for size in grid if size is not None]
    for count in counts.tolist():
        if count in unused:
            unused.remove(count)
    if any(
        is_for_other_axes(-(-mask.shape[i] // window.spec.unit[i]), int(counts[i]), unused)
        for i in short
    ):
        return []
    return [(mask.shape[i] - sizes[i]) / window.spec.unit[i] for i in short]
