"""Marks of float memory that nothing has written: a NaN with bits of its own. Imports no jax."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BITS = {2: 0x7FD5, 4: 0x7FD5D5D5, 8: 0x7FF8D5D5D5D5D5D5}
"""The bits, by the bytes of an element: of float16 and bfloat16, float32, float64."""


def filled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array of marks; None if the dtype has none."""
    if not _is_float(dtype):
        return None
    return np.full(shape, _BITS[dtype.itemsize], f"u{dtype.itemsize}").view(dtype)


def marks(value: Any) -> Array | None:
    """Mask of the elements that are marks; None if there are none."""
    array = np.ascontiguousarray(value)
    if not _is_float(array.dtype):
        return None
    found = array.view(f"u{array.dtype.itemsize}") == _BITS[array.dtype.itemsize]
    return found.reshape(np.shape(value)) if found.any() else None


def written(value: Array) -> Array:
    """A value as it is stored: a NaN that was computed from a mark is a NaN like any other."""
    found = marks(value)
    if found is None:
        return value
    return np.where(found, np.asarray(np.nan, value.dtype), value)


def _is_float(dtype: np.dtype[Any]) -> bool:
    is_float = dtype.kind == "f" or dtype.name == "bfloat16"
    return is_float and dtype.itemsize in _BITS
