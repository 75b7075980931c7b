"""Arrays of a failed assertion that differ by no more than rounding may cause."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from pallas_debug.comparison.tolerances import BITS, most_units, unit

MIN_DISTINCT = 16
"""Minimum number of different values that show that an array was cast from a narrower dtype."""


def no_more_than_rounding(
    actual: np.ndarray, expected: np.ndarray, *, narrow: Collection[str] = ()
) -> str | None:
    """State that two arrays differ by no more than rounding may cause; None if they do not.

    Args:
      actual, expected: arrays of the same shape, or one of them is a number; only floats can be
        rounded.
      narrow: dtypes from which the arrays may have been cast.
    """
    wide = (actual.dtype.name, expected.dtype.name)
    is_comparable = actual.shape == expected.shape or () in (actual.shape, expected.shape)
    if not is_comparable or not all(name in BITS for name in wide):
        return None
    dtypes = [_cast_from(array, narrow) for array in (actual, expected)]
    dtype = max(dtypes, key=unit)
    ours, theirs = (array.astype(np.float64) for array in (actual, expected))
    if _are_exact_integers(ours, unit(dtype)) and _are_exact_integers(theirs, unit(dtype)):
        return None
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        errors = np.where(is_same, 0.0, np.abs(ours - theirs))
        parts = np.where(is_same, 0.0, errors / np.abs(theirs))
    relative = float(parts.max(initial=0.0))
    error = float(errors.max(initial=0.0))
    largest = float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0))
    most = most_units(dtype) * unit(dtype)
    if not error or not math.isfinite(error):
        return None
    if relative <= most:
        size, part = relative, "the expected element"
        allows = f"rtol={_rounded_up(relative)} allows"
    elif error <= most * largest:
        size, part = error / largest, f"the largest one, {largest:.4g}"
        rtol = _rounded_up(float(parts[parts <= most].max(initial=unit(dtype))))
        rest = float((errors - float(rtol) * np.abs(theirs))[parts > most].max(initial=0.0))
        # Small elements, whose terms cancelled, may need less than the largest one does.
        if 2 * rest < error:
            allows = f"rtol={rtol}{f' with atol={_rounded_up(rest)}' if rest else ''} allows"
        else:
            allows = f"atol={_rounded_up(error)} allows"
    else:
        return None
    units = math.ceil(size / unit(dtype))
    word = "unit" if units == 1 else "units"
    were = [now for now, name in zip(wide, dtypes, strict=True) if name == dtype != now]
    arrays = "both arrays have" if len(were) == 2 else "one of the arrays has"
    known = f"{arrays} values of {dtype} as {were[0]}, and " if were else ""
    return (
        f"{known}no element differs by more than {size:.1e} of {part}: {units} {word} of rounding "
        f"of {dtype}, which another order of operations may cause; {allows} that"
    )


def _cast_from(array: np.ndarray, narrow: Collection[str]) -> str:
    """Narrowest of some dtypes of which all elements are; the array's own for too few elements."""
    name = array.dtype.name
    if name not in ("float32", "float64") or np.unique(array).size < MIN_DISTINCT:
        return name
    with np.errstate(over="ignore", invalid="ignore"):
        single = array.astype(np.float32)
        if not np.array_equal(single, array, equal_nan=True):
            return name
        if "bfloat16" in narrow and not (single.view(np.uint32) & 0xFFFF).any():
            return "bfloat16"
        half = single.astype(np.float16).astype(np.float32)
        if "float16" in narrow and np.array_equal(half, single, equal_nan=True):
            return "float16"
    return name


def _are_exact_integers(values: np.ndarray, unit: float) -> bool:
    """Return whether all values are integers that rounding does not change."""
    return bool(((np.abs(values) <= 2 / unit) & (values == np.round(values))).all())


def _rounded_up(value: float) -> str:
    """Format a positive number with one digit that is not less: `3e-07`."""
    digit = 10.0 ** math.floor(math.log10(value))
    return f"{math.ceil(value / digit * (1 - 1e-9)) * digit:.0e}"
