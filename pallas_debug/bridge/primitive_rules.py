"""Rules of the table of primitives: results as XLA computes them, in numpy.

On arrays they broadcast; on scalars they are faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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


def selected(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.choose(which.astype(np.intp), cases, mode="clip")


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
    same = f"{kind}{x.itemsize}"
    return (x.view(same) >> y.astype(same)).view(x.dtype)


def itself(x: Any, *_: Any) -> Any:
    return x
