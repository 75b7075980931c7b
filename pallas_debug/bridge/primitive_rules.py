"""Rules of the table of primitives: results as XLA computes them, in numpy, and their bounds.

On arrays they broadcast; on scalars they are faster. Bounds are pairs of Python floats if they are
known before a run, otherwise of traced scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

Interval = tuple[Any, Any]
"""Smallest and largest element."""

Params = Mapping[str, Any]

# Arrays


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide like XLA: towards zero, and with all bits set for a zero divisor."""
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    safe = np.where(b == 0, 1, b)
    # Floor division: a negative quotient with a remainder is one too small.
    quotient = a // safe
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    ones = np.asarray(-1).astype(a.dtype)
    return np.where(b == 0, ones, quotient + inexact)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))


def logically_shifted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    unsigned = f"u{a.dtype.itemsize}"
    return np.asarray((a.astype(unsigned) >> b.astype(unsigned)).astype(a.dtype))


def inverted(value: np.ndarray) -> np.ndarray:
    return np.asarray(np.logical_not(value) if value.dtype == bool else np.invert(value))


def selected(_: Params, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    result = cases[0]
    for i, case in enumerate(cases[1:], 1):
        result = np.where(which == i, case, result)
    return result


def squared(_: Params, x: np.ndarray) -> Any:
    return x * x


def powered(params: Params, x: np.ndarray) -> Any:
    return x ** params["y"] if params["y"] >= 0 else 1 / x


def clamped(_: Params, low: np.ndarray, x: np.ndarray, high: np.ndarray) -> Any:
    return np.minimum(np.maximum(x, low), high)


# Scalars


def divided_scalar(x: Any, y: Any) -> Any:
    if y == 0:
        return np.asarray(-1).astype(x.dtype)[()]
    quotient = abs(int(x)) // abs(int(y))
    return np.asarray(quotient if (x < 0) == (y < 0) else -quotient).astype(x.dtype)[()]


def remainder_scalar(x: Any, y: Any) -> Any:
    return np.fmod(x, y) if y != 0 else x


def shifted_right(x: Any, y: Any, kind: str = "i") -> Any:
    """Right shift that fills with the sign bit (`i`) or zeros (`u`), for operands of any sign."""
    return (x.view(f"{kind}{x.itemsize}") >> y.view(f"{kind}{y.itemsize}")).view(x.dtype)


def logically_shifted_scalar(x: Any, y: Any) -> Any:
    return shifted_right(x, y, "u")


def larger_scalar(x: Any, y: Any) -> Any:
    return y if y > x else x


def smaller_scalar(x: Any, y: Any) -> Any:
    return y if y < x else x


def selected_scalar(which: Any, *cases: Any) -> Any:
    return cases[int(which)]


def clamped_scalar(low: Any, x: Any, high: Any) -> Any:
    return low if x < low else high if x > high else x


def itself(x: Any) -> Any:
    return x


# Exact results, of wider integers


def divided_exactly(x: Any, y: Any) -> Any:
    """Towards zero; a division by zero is another fault."""
    divisor = np.where(y == 0, 1, y)
    magnitude = np.abs(x) // np.abs(divisor)
    return np.where((x < 0) == (divisor < 0), magnitude, -magnitude)


# Bounds


def least(*values: Any) -> Any:
    if all(isinstance(v, (int, float)) for v in values):
        return min(values)
    found = values[0]
    for value in values[1:]:
        found = jnp.minimum(found, value)
    return found


def greatest(*values: Any) -> Any:
    if all(isinstance(v, (int, float)) for v in values):
        return max(values)
    found = values[0]
    for value in values[1:]:
        found = jnp.maximum(found, value)
    return found


def clamped_bounds(low: Any, value: Any, high: Any) -> Any:
    return least(greatest(value, low), high)


def same_bounds(_: Any, a: Interval, *__: Any) -> Interval:
    """Bounds of elements of the first operand; the others are indices."""
    return a


def sum_bounds(_: Any, a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def difference_bounds(_: Any, a: Interval, b: Interval) -> Interval:
    return a[0] - b[1], a[1] - b[0]


def product_bounds(_: Any, a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return least(*corners), greatest(*corners)


def negative_bounds(_: Any, a: Interval) -> Interval:
    return -a[1], -a[0]


def magnitude_bounds(_: Any, a: Interval) -> Interval:
    return 0.0, greatest(abs(a[0]), abs(a[1]))


def square_bounds(eqn: Any, a: Interval) -> Interval:
    most = greatest(abs(a[0]), abs(a[1])) ** eqn.params.get("y", 2)
    return -most, most


def bounds_of_sum(eqn: Any, a: Interval) -> Interval:
    count = float(terms(eqn))
    if eqn.primitive.name == "cumsum":  # of any number of terms up to that
        return least(a[0] * count, a[0]), greatest(a[1] * count, a[1])
    return a[0] * count, a[1] * count


def contraction_bounds(eqn: Any, a: Interval, b: Interval) -> Interval:
    low, high = product_bounds(eqn, a, b)
    count = float(terms(eqn))
    return low * count, high * count


def terms(eqn: Any) -> int:
    """Number of terms in each element of a sum."""
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.name == "dot_general":
        axes = eqn.params["dimension_numbers"][0][0]
    else:
        axes = eqn.params["axes"] if "axes" in eqn.params else (eqn.params["axis"],)
    return math.prod(shape[axis] for axis in axes)
