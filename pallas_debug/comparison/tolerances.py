"""Default tolerances by dtype, and the differences that they allow."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pallas_debug.errors import UsageError

Number = TypeVar("Number", int, float)

DEFAULTS = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 2**-8,
    "bfloat16": 2**-6,
    "float8_e4m3": 2**-2,
    "float8_e5m2": 2**-1,
    "float4": 1.0,
}
"""Default relative tolerance by dtype, or by a prefix of the dtype's name.

A kernel may sum and round in another order than its reference. For dtypes with few bits, the last
rounding dominates: two to four units in the last place are allowed. For float32 and float64, the
length of a sum dominates: a thousand roundings are allowed, and more for float64, whose inputs are
rarely that exact.
"""

MAX_UNITS = {"float64": 16, "float32": 16}
"""Maximum error that rounding explains, by dtype, in units of rounding of the largest element: the
error of a sum of 256 terms whose roundings add up like a random walk."""

MAX_UNITS_OF_FEW_BITS = 4
"""Like `MAX_UNITS`, for dtypes of 16 bits or fewer: sums that lose more are a fault."""

BITS = {
    "float64": 52,
    "float32": 23,
    "float16": 10,
    "bfloat16": 7,
    "float8_e4m3": 3,
    "float8_e5m2": 2,
    "float4": 1,
}
"""Number of fraction bits by dtype, or by a prefix of the dtype's name."""

COMPLEX = {"complex64": "float32", "complex128": "float64"}

MASK = 1e8
"""Magnitude from which an element may be a mask, such as -1e30: no scale for other elements."""

MASK_GAP = 2.0**20
"""Minimum ratio of masks to the other elements of an output: a sum of both in float32 would have
lost the smaller one."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Tolerance as requested.

    Attributes:
      rtol: relative tolerance; None for the default of the dtype.
      atol: absolute tolerance; None for `rtol` times the largest finite expected element apart from
        masks, so that a sum whose terms cancel is not held to the precision of its small result.
    """

    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is None:
                continue
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise UsageError(
                    f"{name} must be a number of at least 0, not {value!r}; omit it for the "
                    "default of each output's dtype"
                )

    def of(self, dtypes: tuple[str, str], expected: np.ndarray, largest: float = 0.0) -> Allowed:
        """Tolerance for one output.

        Args:
          dtypes: dtypes of the function's result and the reference's; the less precise one decides.
          expected: expected values, widened to float64 or complex128.
          largest: magnitude used for the default of `atol`, if it exceeds all of `expected`.
        """
        rtol = max(map(default, dtypes)) if self.rtol is None else float(self.rtol)
        if self.atol is not None:
            return Allowed(rtol=rtol, atol=float(self.atol))
        sizes = np.abs(expected[np.isfinite(expected)])
        size = float(_without_masks(sizes).max(initial=largest))
        return Allowed(rtol=rtol, atol=rtol * size, is_of_largest=True)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """Error allowed in one output: `atol` plus `rtol` times the expected element.

    Attributes:
      is_of_largest: whether `atol` is `rtol` times the largest element apart from masks.
    """

    rtol: float
    atol: float
    is_of_largest: bool = False

    def at(self, expected: np.ndarray) -> np.ndarray:
        """Allowed error of each element."""
        size = np.abs(expected)
        return self.atol + self.rtol * np.where(np.isfinite(size), size, 0.0)

    def __str__(self) -> str:
        largest = f" ({self.rtol:.3g} of the largest element)" if self.is_of_largest else ""
        return f"{self.atol:.3g}{largest} plus {self.rtol:.3g} of each element"


def _without_masks(sizes: np.ndarray) -> np.ndarray:
    """Leave masks out of magnitudes: no other element is on their scale, or they are no masks."""
    are_masks = sizes >= MASK
    masks, rest = sizes[are_masks], sizes[~are_masks]
    largest = float(rest.max(initial=0.0))
    is_apart = masks.size and largest > 0 and masks.min() >= MASK_GAP * largest
    return rest if is_apart else sizes


def default(dtype: str) -> float:
    """Default relative tolerance of a dtype."""
    return _by_name(DEFAULTS, dtype, 1.0)


def unit(dtype: str) -> float:
    """Unit of rounding of a dtype: the distance from 1 to the next larger number."""
    return 2.0 ** -_by_name(BITS, dtype, 0)


_KIND = re.compile(r"(complex|b?float|u?int)(\d+)")


def is_wider(one: str, other: str) -> bool:
    """Return whether one dtype has all values of another one of the same kind."""
    a, b = _KIND.match(one), _KIND.match(other)
    if a is None or b is None or a[1].removeprefix("b") != b[1].removeprefix("b"):
        return False
    if a[1].endswith("int"):
        return int(a[2]) > int(b[2])
    return unit(one) < unit(other)


def most_units(dtype: str) -> int:
    """Maximum error in units of rounding that rounding explains."""
    return MAX_UNITS.get(COMPLEX.get(dtype, dtype), MAX_UNITS_OF_FEW_BITS)


def _by_name(table: Mapping[str, Number], dtype: str, otherwise: Number) -> Number:
    dtype = COMPLEX.get(dtype, dtype)
    if dtype in table:
        return table[dtype]
    return next((value for name, value in table.items() if dtype.startswith(name)), otherwise)
