"""Values as text: numbers and statistics. Imports no jax."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_debug.stepping import unwritten


def statistics(value: Any, *, is_memory: bool = False) -> str:
    """Summarise an array: minimum, maximum and mean of its finite elements, and what else it has.

    Args:
      is_memory: whether it is what memory holds: some of it may be unwritten.
    """
    array = np.asarray(value)
    if array.size == 0:
        return "empty"
    marks = unwritten.marks(value) if is_memory else None
    left = 0 if marks is None else int(marks.sum())
    if array.dtype.kind == "c":
        array = np.abs(array)
    numbers, nans, infinities = array, 0, 0
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64)
        finite = np.isfinite(array)
        nans = int(np.isnan(array).sum())
        infinities = int(array.size - finite.sum()) - nans
        numbers = array[finite]
    parts = []
    if numbers.size:
        least, greatest, mean = (float(of(numbers)) for of in (np.min, np.max, np.mean))
        parts += [f"min {least:.6g}", f"max {greatest:.6g}", f"mean {mean:.6g}"]
    named = {
        "zero": int((numbers == 0).sum()),
        "NaN": nans - left,
        "Inf": infinities,
        "unwritten": left,
    }
    return ", ".join([*parts, *(f"{count:,} {name}" for name, count in named.items() if count)])


def numbers(value: Any) -> str:
    """The elements, as numpy prints them: the corners of a large array."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuc":
        array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
    with np.printoptions(threshold=64, edgeitems=3, linewidth=78, precision=5, suppress=False):
        return str(array)


def type_of(value: Any) -> str:
    """Dtype and shape, such as `f32[8,128]`."""
    array = np.asarray(value)
    return named_type(array.dtype.name, array.shape)


def named_type(dtype: str, shape: tuple[int, ...]) -> str:
    short = dtype
    for long, letter in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i")):
        if dtype.startswith(long):
            short = dtype.replace(long, letter, 1)
            break
    return f"{short}[{','.join(map(str, shape))}]"
