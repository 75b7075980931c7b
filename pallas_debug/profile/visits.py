"""Statistics of a grid's visits to the blocks of an operand, without enumerating the grid.

A grid dimension that an index map does not depend on only repeats blocks, so blocks are enumerated
over the other dimensions alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.profile.blocks import MAX_VALUES, BlockIndex, BlockVisits

MAX_POINTS = 1 << 17
"""Maximum grid points over which blocks are counted."""

MAX_CELLS = 1 << 21
"""Maximum cells into which the edges of blocks divide an array."""

MAX_RANK = 8
"""Maximum rank of an array whose coverage is computed; a block has 2**n corners."""

Indices = Sequence[np.ndarray]


def recorded(dimension: BlockIndex, index: np.ndarray, grid: Sequence[int]) -> BlockIndex:
    """Return a dimension with the recorded values of its index map.

    Args:
      index: index map's values, as an array that broadcasts against the grid.
    """
    index = _full_rank(index, len(grid))
    zero = (0,) * len(grid)
    offset = int(index[zero])
    strides = []
    affine = np.full((1,) * len(grid), offset, np.int64)
    for axis, size in enumerate(index.shape):
        stride = 0
        if size > 1:
            stride = int(index[tuple(int(i == axis) for i in range(len(grid)))]) - offset
            steps = np.arange(size, dtype=np.int64) * stride
            affine = affine + steps.reshape([-1 if i == axis else 1 for i in range(len(grid))])
        strides.append(stride)
    if np.array_equal(np.broadcast_to(affine, index.shape), index):
        return replace(dimension, offset=offset, strides=tuple(strides))
    return replace(
        dimension,
        axes=tuple(i for i, size in enumerate(index.shape) if size > 1),
        values=tuple(map(int, index.ravel())) if index.size <= MAX_VALUES else None,
    )


def visits(
    dimensions: Sequence[BlockIndex], indices: Indices, grid: Sequence[int]
) -> BlockVisits | None:
    """Count visits of blocks; None if they depend on more than `MAX_POINTS` grid points.

    Args:
      indices: indices of each dimension, as arrays that broadcast against the grid.
    """
    if not indices:
        return BlockVisits(copies=1, distinct=1, untouched=0)
    shape = np.broadcast_shapes((1,) * len(grid), *(index.shape for index in indices))
    if math.prod(shape) > MAX_POINTS:
        return None
    arrays = [np.broadcast_to(_full_rank(index, len(grid)), shape) for index in indices]
    blocks = np.stack([a.ravel() for a in arrays], axis=-1).astype(np.int64)
    distinct, numbers = _distinct(blocks)
    ids = numbers.reshape(shape)
    copies = _copies(ids, len(distinct), grid)
    starts, stops = _spans(dimensions, distinct)
    bounds = np.array([d.bound for d in dimensions], np.int64)
    is_outside: Any = ((stops <= 0) | (starts >= bounds)).any(axis=1)
    outside = np.asarray(is_outside[ids])
    return BlockVisits(
        copies=int(copies.sum()),
        distinct=len(distinct),
        outside=int(np.count_nonzero(outside)) * math.prod(grid) // math.prod(shape),
        partial=int((((starts < 0) | (stops > bounds)).any(axis=1) & ~is_outside).sum()),
        untouched=_untouched(
            np.maximum(starts, 0)[~is_outside], np.minimum(stops, bounds)[~is_outside], bounds
        ),
    )


def _distinct(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, and for each row its index among them."""
    low = blocks.min(axis=0)
    sizes = [int(size) for size in blocks.max(axis=0) - low + 1]
    if math.prod(sizes) >= 1 << 62:
        return np.unique(blocks, axis=0, return_inverse=True)
    # Sorting numbers takes a tenth of the time of sorting rows.
    keys = np.zeros(len(blocks), np.int64)
    for column, size in zip((blocks - low).T, sizes, strict=True):
        keys = keys * size + column
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return blocks[first], numbers


def _full_rank(index: np.ndarray, rank: int) -> np.ndarray:
    return index.reshape((1,) * (rank - index.ndim) + index.shape)


def _copies(ids: Any, distinct: int, grid: Sequence[int]) -> np.ndarray:
    """Count how often each block is copied, as the previous grid point had a different block.

    The step to a grid point advances one dimension and resets those after it to 0. For each
    dimension that may advance, all such steps are compared at once.
    """
    copies = np.zeros(distinct, np.int64)
    copies[ids[(0,) * len(grid)]] += 1
    for axis, size in enumerate(grid):
        if size < 2:
            continue
        behind = tuple(-1 for _ in grid[axis + 1 :])
        ahead = tuple(0 for _ in grid[axis + 1 :])
        if ids.shape[axis] > 1:
            leaves = ids[(..., slice(None, -1), *behind)]
            enters = ids[(..., slice(1, None), *ahead)]
            repeats = 1
        else:
            leaves, enters = ids[(..., 0, *behind)], ids[(..., 0, *ahead)]
            repeats = size - 1
        repeats *= math.prod(n for n, own in zip(grid[:axis], ids.shape, strict=False) if own == 1)
        entered = enters[leaves != enters]
        copies += np.bincount(entered.ravel(), minlength=distinct) * repeats
    return copies


def _spans(dimensions: Sequence[BlockIndex], blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first elements of blocks, and one past their last elements."""
    units = np.array([d.unit for d in dimensions], np.int64)
    before = np.array([d.padding[0] for d in dimensions], np.int64)
    starts = blocks * units - before
    return starts, starts + np.array([d.size for d in dimensions], np.int64)


def _untouched(starts: np.ndarray, stops: np.ndarray, bounds: np.ndarray) -> int | None:
    """Count the elements of an array that are in no block; None if there are too many blocks."""
    rank = len(bounds)
    if not rank or rank > MAX_RANK or 0 in bounds:
        return None
    edges = [
        np.unique(np.concatenate([starts[:, d], stops[:, d], [0, bounds[d]]])) for d in range(rank)
    ]
    cells = tuple(len(e) - 1 for e in edges)
    if math.prod(n + 1 for n in cells) > MAX_CELLS:
        return None
    lows = [np.searchsorted(edges[d], starts[:, d]) for d in range(rank)]
    highs = [np.searchsorted(edges[d], stops[:, d]) for d in range(rank)]
    # Each block adds one to its cells: differences at its corners, summed along every dimension.
    counts = np.zeros(tuple(n + 1 for n in cells), np.int64)
    for corner in itertools.product((0, 1), repeat=rank):
        spot = tuple(highs[d] if high else lows[d] for d, high in enumerate(corner))
        np.add.at(counts, spot, (-1) ** sum(corner))
    for d in range(rank):
        counts = counts.cumsum(axis=d)
    counts = counts[tuple(slice(0, n) for n in cells)]
    # In floats the product of sizes of a huge array stays finite; counts below are exact to 2**53.
    sizes = np.ones(cells)
    for d in range(rank):
        widths = np.diff(edges[d]).astype(float)
        sizes = sizes * widths.reshape([-1 if i == d else 1 for i in range(rank)])
    return int(sizes[counts == 0].sum())
