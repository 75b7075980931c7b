"""Order and coverage of the blocks that the grid visits.

A grid dimension that an index map does not depend on only repeats blocks, so blocks are enumerated
only over the other dimensions.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from pallas_debug.analysis.coverage import unvisited
from pallas_debug.analysis.subject import Result, Subject
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.findings.facts import block_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.memory import Count, WhyUnwritten
from pallas_debug.findings.order import Access, Race
from pallas_debug.findings.sighting import revisited

MAX_POINTS = 1 << 24
"""Maximum number of grid points over which blocks are enumerated."""


@dataclass(frozen=True, kw_only=True)
class _Visit:
    """Blocks that an output's index map selects.

    Attributes:
      ids: block numbers, as an array that broadcasts against the grid.
      depends: grid dimensions larger than 1 that the block depends on.
      counts: number of blocks along each dimension of the array.
    """

    block: Block
    ids: np.ndarray
    depends: tuple[int, ...]
    counts: tuple[int, ...]

    @functools.cached_property
    def seen(self) -> np.ndarray | None:
        """Mask of visited blocks; None if there are too many."""
        total = math.prod(self.counts)
        if total > 4 * MAX_POINTS:
            return None
        seen = np.zeros(total, bool)
        seen[self.ids.ravel()] = True
        return seen

    @functools.cached_property
    def is_injective(self) -> bool:
        """True if each step of the dimensions it depends on has a different block."""
        return self.seen is not None and int(np.count_nonzero(self.seen)) == self.ids.size


def look(subject: Subject) -> Result:
    """Report outputs that are unwritten, revisited, or shared between parallel grid points."""
    result = Result()
    if 0 in subject.grid.sizes:
        return result
    for number, block in enumerate(subject.grid.outputs):
        if block.memory_space not in ("default", "vmem", "smem") or 0 in block.shape:
            continue  # not pipelined with the grid, or empty
        visit = _visit(subject, block, result)
        if visit is None:
            continue
        if number not in subject.grid.aliased:
            _coverage(subject, visit, result)
        if not _parallel(subject, visit, result) and not block.revisits:
            _order(subject, visit, result)
    return result


def _visit(subject: Subject, block: Block, result: Result) -> _Visit | None:
    dims = subject.indices[block.position].dims
    if dims is None:
        return None  # reported by `blocks`
    if any(dim.kind not in ("blocked", "squeezed") for dim in block.dims):
        result.left_out.append(
            f"the order in which the blocks of {block.name} are visited: they may overlap"
        )
        return None
    counts = tuple(dim.count for dim in block.dims)
    for index, count in zip(dims, counts, strict=True):
        if index.size and (index.min() < 0 or index.max() >= count):
            return None  # reported by `blocks`
    points = math.prod(np.broadcast_shapes(*(d.shape for d in dims)))
    if points > MAX_POINTS:
        _too_many(block, points, result)
        return None
    ids = np.zeros((1,) * len(subject.grid.sizes), np.int64)
    for index, count in zip(dims, counts, strict=True):
        ids = ids * count + index
    depends = tuple(d for d, size in enumerate(ids.shape) if size > 1)
    return _Visit(block=block, ids=ids, depends=depends, counts=counts)


def _too_many(block: Block, points: int, result: Result) -> None:
    result.left_out.append(
        f"the order in which the blocks of {block.name} are visited: they depend on "
        f"{points:,} grid points"
    )


def _coverage(subject: Subject, visit: _Visit, result: Result) -> None:
    """Check that every block of the array is visited."""
    block, seen, total = visit.block, visit.seen, math.prod(visit.counts)
    if seen is None:
        result.left_out.append(
            f"whether every block of {block.name} is written: it has {total:,} blocks"
        )
        return
    missing = total - int(np.count_nonzero(seen))
    if not missing:
        return
    first = tuple(int(i) for i in np.unravel_index(int(np.argmin(seen)), visit.counts))
    source = subject.block_line(block)
    why: WhyUnwritten = "left out"
    for dim, axis in zip(block.dims, block.passed, strict=True):
        steps = None if axis is None else subject.grid.sizes[axis]
        if axis is not None and dim.bound % dim.size and steps == dim.bound // dim.size:
            why = "rounded down"
            source = subject.site.line("grid", subject.grid.number(axis)) or source
            break
    sighting = subject.of_block(
        block,
        source=source,
        index=unvisited(block, seen, visit.counts) or block_text(block.name, first),
        values={"missing": str(missing), "blocks": str(total)},
    )
    finding = sighting.of(
        Fault.OUTPUT_NOT_WRITTEN,
        part=f"block {first} of {block.name}",
        why=why,
        count=Count(missing, total, "blocks"),
    )
    result.findings.append(finding)


def _parallel(subject: Subject, visit: _Visit, result: Result) -> bool:
    """Report grid points without a defined order that write to the same block."""
    grid = subject.grid
    parallel = [d for d, is_so in enumerate(grid.parallel) if is_so and grid.sizes[d] > 1]
    shared = [d for d in parallel if d not in visit.depends]
    if shared:
        first = (0,) * len(grid.sizes)
        other = tuple(int(d == shared[0]) for d in range(len(grid.sizes)))
    else:
        pair = _sharing(visit, parallel)
        if pair is None:
            return False
        first, other = pair
    block = visit.block
    index = _index(visit, other)
    race = Race(
        here=Access(writes=True, grid_point=other),
        there=Access(writes=True, grid_point=first),
        axes=grid.numbers(shared or parallel),
    )
    seen = subject.of_block(block, grid_point=other, index=block_text(block.name, index))
    what = f"block {index} of {block.name}"
    finding = seen.of(Fault.DATA_RACE, what=what, race=race)
    condition = "the grid points store different values"
    result.findings.append(replace(finding, only_if=condition))
    return True


def _sharing(visit: _Visit, parallel: list[int]) -> tuple[tuple[int, ...], ...] | None:
    """Return two grid points with the same block that differ along a parallel dimension."""
    if not parallel or visit.is_injective:
        return None
    shape = visit.ids.shape
    coordinates = np.zeros((1,) * len(shape), np.int64)
    for d in parallel:
        steps = np.arange(shape[d]).reshape([-1 if i == d else 1 for i in range(len(shape))])
        coordinates = coordinates * shape[d] + steps
    flat = visit.ids.ravel()
    slices = np.broadcast_to(coordinates, shape).ravel()
    by_block = np.argsort(flat, kind="stable")
    same = (np.diff(flat[by_block]) == 0) & (np.diff(slices[by_block]) != 0)
    if not same.any():
        return None
    spot = int(np.argmax(same))
    pair = (by_block[spot], by_block[spot + 1])
    return tuple(tuple(int(i) for i in np.unravel_index(int(p), shape)) for p in pair)


def _order(subject: Subject, visit: _Visit, result: Result) -> None:
    """Report blocks that are left and revisited."""
    sizes = subject.grid.sizes
    innermost = max(visit.depends, default=-1)
    # Dimensions that only repeat blocks need one step if innermost, and two elsewhere.
    shape = [
        (visit.ids.shape[d] if d in visit.depends else (min(size, 2) if d < innermost else 1))
        for d, size in enumerate(sizes)
    ]
    if visit.is_injective and math.prod(shape) == visit.ids.size:
        return
    if math.prod(shape) > MAX_POINTS:
        _too_many(visit.block, math.prod(shape), result)
        return
    flat = np.broadcast_to(visit.ids, shape).ravel()
    by_block = np.argsort(flat, kind="stable")
    back = (np.diff(flat[by_block]) == 0) & (np.diff(by_block) > 1)
    if not back.any():
        return
    spots = np.flatnonzero(back)
    spot = int(spots[np.argmin(by_block[spots + 1])])
    before, again = (
        tuple(int(i) for i in np.unravel_index(int(p), shape)) for p in by_block[spot : spot + 2]
    )
    block = visit.block
    index = _index(visit, again)
    seen = subject.of_block(block, grid_point=again, index=block_text(block.name, index))
    finding = revisited(
        seen,
        what=f"block {index} of {block.name}",
        first=before,
        last=before,
        again=again,
    )
    # A visit that stores the whole block again, and reads none of it, loses nothing.
    condition = f"a later visit reads {block.name} before storing to it, or stores only a part"
    result.findings.append(replace(finding, only_if=condition))


def _index(visit: _Visit, point: tuple[int, ...]) -> tuple[int, ...]:
    spot = tuple(i if n > 1 else 0 for i, n in zip(point, visit.ids.shape, strict=True))
    return tuple(int(i) for i in np.unravel_index(int(visit.ids[spot]), visit.counts))
