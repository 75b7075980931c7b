"""Blocks and grid points of the differing elements of a kernel's output, by its index map."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk import index_maps
from pallas_debug.comparison import patterns
from pallas_debug.comparison.differences import unravel
from pallas_debug.findings.wording.mismatch import Written, ranges
from pallas_debug.findings.wording.regions import DifferingRegion

SECONDS = 5.0
"""Time limit in seconds for the evaluation of an index map."""

MAX_POINTS = 1 << 24
"""Maximum number of grid points whose blocks are examined."""


class Unknown(Exception):
    """The blocks of an output are unknown; the message says why."""


def written(
    captured: Capture, output: int, bad: np.ndarray, tables: Mapping[int, np.ndarray]
) -> tuple[Written, tuple[int, ...], tuple[int, ...] | None]:
    """Find the blocks with differing elements, and the grid points that visit the first of them.

    Args:
      output: number of the output among the kernel's.
      bad: mask of the differing elements, in the shape of the kernel's output.
      tables: known scalar prefetch, by position.

    Returns:
      The blocks; the first differing element of the first block, in grid order; and the last grid
      point that visits that block, whose values the output keeps, or None if it is unknown.

    Raises:
      Unknown: the kernel has no blocks, or its index map cannot be evaluated.
    """
    try:
        grid = index_maps.grid(captured)
    except index_maps.NotReadable as error:
        raise Unknown(str(error)) from error
    block = grid.outputs[output]
    if block.space in ("any", "hbm"):
        raise Unknown(f"the kernel copies to {block.name} itself")
    if grid.points > MAX_POINTS:
        raise Unknown(f"its grid has {grid.points:,} points")
    if not all(dim.kind in ("blocked", "squeezed") for dim in block.dims):
        raise Unknown(f"the blocks of {block.name} are indexed by element and may overlap")
    found = index_maps.indices(captured, block.position, tables, time.monotonic() + SECONDS)
    if found.dims is None:
        raise Unknown(f"the index map of {block.name} is unknown: {found.reason}")
    sizes = tuple(dim.size for dim in block.dims)
    counts = tuple(dim.blocks for dim in block.dims)
    visits = _visits(found.dims, counts, grid.sizes)
    tiles = _tiles(bad, sizes, counts)
    bad_blocks = np.asarray(tiles.any(axis=tuple(range(1, 2 * bad.ndim, 2))))
    flat = bad_blocks.reshape(-1)
    visited = np.zeros(flat.size, bool)
    visited[visits[visits >= 0]] = True
    hits = np.flatnonzero((visits >= 0) & flat[np.maximum(visits, 0)])
    first = int(visits[hits[0]]) if len(hits) else int(np.argmax(flat))
    points = np.flatnonzero(visits == first)
    window = _window(unravel(first, counts), sizes, bad.shape)
    ends = dict.fromkeys(unravel(int(p), grid.sizes) for p in (*points[:1], *points[-1:]))
    last = unravel(int(points[-1]), grid.sizes) if len(points) else None
    facts = Written(
        block=ranges(window),
        points=tuple(ends),
        visits=len(points),
        differing=int(flat.sum()),
        blocks=flat.size,
        region=patterns.region(bad_blocks),
        inside=_inside(tiles, bad_blocks),
        unvisited=int((flat & ~visited).sum()),
    )
    return facts, _first(bad, window), last


def _window(
    block: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...]
) -> list[tuple[int, int]]:
    return [(i * n, min((i + 1) * n, end)) for i, n, end in zip(block, sizes, shape, strict=True)]


def _first(bad: np.ndarray, window: list[tuple[int, int]]) -> tuple[int, ...]:
    """The first differing element of a part of an array."""
    inside = bad[tuple(slice(*one) for one in window)]
    offset = unravel(int(np.argmax(inside)), inside.shape)
    return tuple(w[0] + o for w, o in zip(window, offset, strict=True))


def _visits(
    dims: tuple[np.ndarray, ...], counts: tuple[int, ...], grid: tuple[int, ...]
) -> np.ndarray:
    """Number of the block that each grid point visits, in grid order; -1 beyond the array."""
    number = np.zeros(grid, np.int64)
    is_inside = np.ones(grid, bool)
    for index, count in zip(dims, counts, strict=True):
        number = number * count + index
        is_inside = is_inside & (index >= 0) & (index < count)
    return np.where(is_inside, number, -1).reshape(-1)


def _tiles(bad: np.ndarray, sizes: tuple[int, ...], counts: tuple[int, ...]) -> np.ndarray:
    """Reshape the mask so that block index and offset within the block alternate as dimensions."""
    if not bad.ndim:
        return bad
    missing = [(0, n * c - end) for n, c, end in zip(sizes, counts, bad.shape, strict=True)]
    shape = [size for pair in zip(counts, sizes, strict=True) for size in pair]
    return np.pad(bad, missing).reshape(shape)


def _inside(tiles: np.ndarray, bad_blocks: np.ndarray) -> DifferingRegion | None:
    """Part of a block that differs, if it is the same in all differing blocks."""
    rank = bad_blocks.ndim
    offsets = np.asarray(tiles.any(axis=tuple(range(0, 2 * rank, 2)), keepdims=True))
    blocks = tiles.any(axis=tuple(range(1, 2 * rank, 2)), keepdims=True)
    if not rank or not np.array_equal(tiles, blocks & offsets):
        return None
    return patterns.region(offsets.reshape(offsets.shape[1::2]))
