"""Marks for unwritten memory: NaNs with a special bit pattern. Imports no jax."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_BITS = {2: 0x7FD5, 4: 0x7FD5D5D5, 8: 0x7FF8D5D5D5D5D5D5}
"""The bits, by the bytes of an element: of float16 and bfloat16, float32, float64."""


def memory(shape: tuple[int, ...], dtype: np.dtype[Any], fill: str = "nan") -> Array:
    """Contents for unwritten memory: NaN, or numbers that are unlikely to look right.

    Args:
      fill: "nan", "number", or "mark" for the marks where the dtype has them.
    """
    if fill == "mark":
        marked = filled(tuple(shape), dtype)
        if marked is not None:
            return marked
        fill = "nan"
    if dtype.kind in "fc" or "float" in dtype.name:
        value: Any = np.nan if fill == "nan" else 3.0
        return np.full(shape, value, dtype)
    if dtype.kind == "b":
        return np.full(shape, fill == "nan", dtype)
    if dtype.kind not in "iu":
        return np.zeros(shape, dtype)
    info = np.iinfo(dtype)
    return np.full(shape, info.max // 3 if fill == "nan" else info.min // 5 + 7, dtype)


def like(shape: tuple[int, ...], others: Array) -> Array:
    """Plausible contents of memory: numbers of other elements, or zeros if there are none."""
    kept = others.ravel()
    if kept.dtype.kind not in "biu":
        kept = kept[np.isfinite(kept.astype(np.float64))]
    return np.resize(kept, shape) if kept.size else np.zeros(shape, others.dtype)


def holds(dtype: np.dtype[Any], number: float) -> bool:
    """Return whether an integer dtype can represent a number."""
    if dtype.kind not in "iu" or number != number // 1:  # also true of NaN and infinity
        return False
    info = np.iinfo(dtype)
    return bool(info.min <= number <= info.max)


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
    """Prepare a value for a store: a NaN computed from a mark becomes an ordinary NaN."""
    found = marks(value)
    if found is None:
        return value
    return np.where(found, np.asarray(np.nan, value.dtype), value)


def _is_float(dtype: np.dtype[Any]) -> bool:
    is_float = dtype.kind == "f" or dtype.name == "bfloat16"
    return is_float and dtype.itemsize in _BITS
