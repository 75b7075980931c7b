"""Copies that reach into the padding of an array in HBM.

A TPU stores an array in tiles of 8 rows and 128 columns, so an array with 255 columns occupies 256.
A copy of whole tiles includes the padding, and kernels rely on it, but the interpreter's arrays
have no padding. Here, such a copy reads uninitialised values for the padding, and does not write
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.state import indexing
from jax._src.state.types import ReshapeTransform

TILE = (8, 128)
"""Rows and columns of a tile; narrow types have more rows per tile, never fewer."""


def reaches_padding(memory_space: Any, transforms: Sequence[Any]) -> bool:
    """Return whether an access is outside its array in HBM, but within the array's tiles.

    Args:
      transforms: with concrete values.
    """
    space = interpreter.TPU_MEMORY_SPACE_NAMES[int(memory_space)]
    if space not in ("hbm", "any") or not transforms:
        return False
    *before, last = transforms
    if not isinstance(last, indexing.NDIndexer):
        return False
    is_reaching = False
    for axis, (index, size) in enumerate(zip(last.indices, last.shape, strict=True)):
        stop = _stop(index)
        if stop <= size:
            continue
        from_the_end = len(last.shape) - axis
        is_tiled = from_the_end <= len(TILE) and _keeps(before, from_the_end)
        tile = TILE[-from_the_end] if is_tiled else 1
        if stop > -(-size // tile) * tile or not isinstance(index, indexing.Slice):
            return False
        is_reaching = True
    return is_reaching


def within_array(transforms: Sequence[Any]) -> tuple[Any, ...]:
    """Clip the last indexer at the end of its array."""
    *before, last = transforms
    indices = [
        dataclasses.replace(index, size=max(0, -(-(size - index.start) // index.stride)))
        if _stop(index) > size
        else index
        for index, size in zip(last.indices, last.shape, strict=True)
    ]
    return (*before, dataclasses.replace(last, indices=tuple(indices)))


def cut(values: np.ndarray[Any, Any], transforms: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Leave away the values for the padding.

    Args:
      values: for an access that reaches the padding.
      transforms: of the same access, `within_array`.
    """
    sizes = [i.size for i in transforms[-1].indices if isinstance(i, indexing.Slice)]
    return values[tuple(map(slice, sizes))]


def _stop(index: Any) -> int:
    """One past the last element that an index selects; 0 if it selects none."""
    if not isinstance(index, indexing.Slice):
        return int(index) + 1
    return int(index.start + (index.size - 1) * index.stride + 1) if index.size else 0


def _keeps(transforms: Sequence[Any], from_the_end: int) -> bool:
    """Return whether transforms keep the memory layout of the last dimensions."""
    for transform in transforms:
        if isinstance(transform, ReshapeTransform) and from_the_end == 1:
            continue  # jax compares the size of the last dimension, and pads it
        if not isinstance(transform, indexing.NDIndexer):
            return False
        last = zip(transform.indices[-from_the_end:], transform.shape[-from_the_end:], strict=True)
        for index, size in last:
            is_whole = isinstance(index, indexing.Slice) and (index.start, index.size) == (0, size)
            if not is_whole:
                return False
    return True
