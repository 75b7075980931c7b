"""Blocks of an operand that a grid visits, without enumerating the grid.

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

from pallas_debug.profile.blocks import MAX_VALUES, BlockIndex

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


def untouched(
    dimensions: Sequence[BlockIndex], indices: Indices, grid: Sequence[int]
) -> int | None:
    """Count the elements of an array that are in no block.

    None if blocks depend on more than `MAX_POINTS` grid points, or there are too many of them.

    Args:
      indices: indices of each dimension, as arrays that broadcast against the grid.
    """
    shape = np.broadcast_shapes((1,) * len(grid), *(index.shape for index in indices))
    if not indices or math.prod(shape) > MAX_POINTS:
        return None if indices else 0
    arrays = [np.broadcast_to(_full_rank(index, len(grid)), shape) for index in indices]
    blocks = np.unique(np.stack([a.ravel() for a in arrays], axis=-1).astype(np.int64), axis=0)
    starts, stops = _spans(dimensions, blocks)
    bounds = np.array([d.bound for d in dimensions], np.int64)
    is_inside: Any = ((stops > 0) & (starts < bounds)).all(axis=1)
    return _in_none(np.maximum(starts, 0)[is_inside], np.minimum(stops, bounds)[is_inside], bounds)


def _full_rank(index: np.ndarray, rank: int) -> np.ndarray:
    return index.reshape((1,) * (rank - index.ndim) + index.shape)


def _spans(dimensions: Sequence[BlockIndex], blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first elements of blocks, and one past their last elements."""
    units = np.array([d.unit for d in dimensions], np.int64)
    before = np.array([d.padding[0] for d in dimensions], np.int64)
    starts = blocks * units - before
    return starts, starts + np.array([d.size for d in dimensions], np.int64)


def _in_none(starts: np.ndarray, stops: np.ndarray, bounds: np.ndarray) -> int | None:
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
