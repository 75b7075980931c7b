"""Values as text: numbers, statistics, heat maps. Imports no jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.stepping import unwritten

Array = np.ndarray[Any, Any]

SHADES = " ░▒▓█"
"""Characters of a heat map, from the smallest to the largest value."""

ODD = "!"
"""Cell with a NaN or an infinity."""


@dataclass(frozen=True, kw_only=True)
class ValueStatistics:
    """Summary of an array; minimum, maximum and mean cover its finite elements.

    Attributes:
      least, greatest, mean: None if no element is finite.
      unwritten: number of elements of memory that nothing has written.
    """

    count: int
    least: float | None
    greatest: float | None
    mean: float | None
    zeros: int
    nans: int
    infinities: int
    unwritten: int = 0

    def __str__(self) -> str:
        if self.count == 0:
            return "empty"
        parts = []
        if self.least is not None:
            parts += [f"min {self.least:.6g}", f"max {self.greatest:.6g}", f"mean {self.mean:.6g}"]
        named = {
            "zero": self.zeros,
            "NaN": self.nans,
            "Inf": self.infinities,
            "unwritten": self.unwritten,
        }
        parts += [f"{count:,} {name}" for name, count in named.items() if count]
        return ", ".join(parts)


def wide(value: Any) -> Array:
    """Convert a value for computing with numpy: floats to float64, small integers to int64."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "c":
        return np.asarray(np.abs(array))
    return array.astype(np.float64)


def statistics(value: Any, *, is_memory: bool = False) -> ValueStatistics:
    """Summarise an array.

    Args:
      is_memory: whether it is what memory holds: some of it may be unwritten.
    """
    array = wide(value)
    marks = unwritten.marks(value) if is_memory else None
    left = 0 if marks is None else int(marks.sum())
    if array.dtype.kind in "biu":
        numbers, nans, infinities = array, 0, 0
    else:
        finite = np.isfinite(array)
        nans = int(np.isnan(array).sum())
        infinities = int(array.size - finite.sum()) - nans
        numbers = array[finite]
    some = numbers.size > 0
    return ValueStatistics(
        count=array.size,
        least=float(numbers.min()) if some else None,
        greatest=float(numbers.max()) if some else None,
        mean=float(numbers.mean()) if some else None,
        zeros=int((numbers == 0).sum()),
        nans=nans - left,
        infinities=infinities,
        unwritten=left,
    )


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


def heat(value: Any, rows: int, columns: int) -> tuple[Array, Array]:
    """Levels of an array's last two dimensions, from 0 to 1, and where it is not finite.

    Leading dimensions are taken at index 0. Each cell is the mean of the finite elements that it
    covers.

    Returns:
      levels: float64 of at most `rows` x `columns`; NaN where no element is finite.
      odd: bool of the same shape: whether an element is NaN or infinite.
    """
    array = wide(value).astype(np.float64)
    if array.ndim < 2:
        array = array.reshape(1, -1)
    while array.ndim > 2:
        array = array[0] if array.shape[0] else np.zeros(array.shape[1:])
    if array.size == 0:
        return np.zeros((0, 0)), np.zeros((0, 0), bool)
    finite = np.isfinite(array)
    filled = np.where(finite, array, 0.0)
    sums, counts, odd = filled, finite.astype(np.float64), ~finite
    for axis, most in ((0, rows), (1, columns)):
        size = array.shape[axis]
        starts = np.unique(
            np.linspace(0, size, min(size, max(most, 1)), endpoint=False).astype(int)
        )
        sums = np.add.reduceat(sums, starts, axis)
        counts = np.add.reduceat(counts, starts, axis)
        odd = np.logical_or.reduceat(odd, starts, axis)
    with np.errstate(all="ignore"):
        means = np.where(counts > 0, sums / counts, np.nan)
        low, high = np.nanmin(means, initial=np.inf), np.nanmax(means, initial=-np.inf)
        levels = (means - low) / (high - low) if high > low else np.where(counts > 0, 0.5, np.nan)
    return levels, odd


def heat_map(value: Any) -> list[str]:
    """A heat map in text: darker means larger, `!` marks a NaN or an infinity."""
    levels, odd = heat(value, rows=12, columns=48)
    shades = np.array(list(SHADES))
    with np.errstate(invalid="ignore"):
        place = np.nan_to_num(levels * (len(SHADES) - 1)).round().astype(int)
    cells = np.where(odd, ODD, shades[np.clip(place, 0, len(SHADES) - 1)]) if levels.size else odd
    return ["".join(row) for row in cells]
