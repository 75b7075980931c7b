"""Differences of two arrays: the elements, the first one, the largest errors. Uses only numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pallas_debug.comparison.tolerances import Allowed, Tolerance
from pallas_debug.findings.facts import array_text

INEXACT = ("float", "bfloat", "complex")
"""Prefixes of dtypes that are compared with a tolerance; values of others must be equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaf:
    """An array of a result, on the host.

    Attributes:
      path: path in jax's notation; empty for a single array.
      dtype: jax's name of the dtype.
      values: floats as float64 or complex128, everything else unchanged.
    """

    path: str
    dtype: str
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def is_inexact(self) -> bool:
        return self.dtype.startswith(INEXACT)

    @property
    def wide(self) -> np.ndarray:
        """Convert values to float64 or complex128; integers beyond 53 bits lose low bits."""
        kind = np.complex128 if self.values.dtype.kind == "c" else np.float64
        return np.asarray(self.values, kind)

    def __str__(self) -> str:
        return array_text(self.dtype, self.shape)


class Differences:
    """Elements of `actual` that differ from `expected`, an array of the same shape.

    Attributes:
      bad: mask of differing elements, without those that are NaN in the reference.
      unjudged: mask of elements that are NaN in the reference.
      allowed: the tolerance; None if elements must be equal.
    """

    def __init__(self, actual: Leaf, expected: Leaf, tolerance: Tolerance) -> None:
        self.actual, self.expected = actual, expected
        self.allowed: Allowed | None = None
        if actual.is_inexact or expected.is_inexact:
            a, b = actual.wide, expected.wide
            self.allowed = tolerance.of((actual.dtype, expected.dtype), b)
            self.unjudged = np.isnan(b)
            with np.errstate(invalid="ignore", over="ignore"):
                close = np.abs(a - b) <= self.allowed.at(b)
            close |= a == b  # infinities
            close &= np.isfinite(b) | (a == b)
            self.bad = ~close & ~self.unjudged
        else:
            self.bad = np.asarray(actual.values != expected.values)
            self.unjudged = np.zeros(self.bad.shape, bool)

    @cached_property
    def count(self) -> int:
        return int(self.bad.sum())

    @cached_property
    def first(self) -> tuple[int, ...]:
        """Index of the first differing element in memory order."""
        return unravel(int(np.argmax(self.bad)), self.bad.shape)

    @cached_property
    def _errors(self) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(self.actual.wide - self.expected.wide)
        # An unexpected NaN is worse than any number.
        errors = np.where(np.isnan(errors), np.inf, errors)
        return np.where(self.bad, errors, -1.0)

    def largest_absolute(self) -> tuple[str, tuple[int, ...]]:
        """Largest error, as text, and its element."""
        at = unravel(int(np.argmax(self._errors)), self.bad.shape)
        return self._worst(at, float(self._errors[at])), at

    def largest_relative(self) -> str | None:
        """Largest error relative to the expected element, as text; None if those are all zero."""
        if not self.actual.is_inexact:
            return None
        size = np.abs(self.expected.wide)
        is_known = self.bad & (size > 0) & np.isfinite(size)
        if not is_known.any():
            return None
        errors = np.where(is_known, self._errors / np.where(is_known, size, 1.0), -1.0)
        at = unravel(int(np.argmax(errors)), self.bad.shape)
        return self._worst(at, float(errors[at]))

    def _worst(self, at: tuple[int, ...], error: float) -> str:
        if np.isfinite(error):
            return f"{error:.4g}" if self.actual.is_inexact else f"{error:.0f}"
        return "NaN" if np.isnan(self.actual.wide[at]) else "infinite"


def text(leaf: Leaf, at: tuple[int, ...]) -> str:
    """An element as text: floats with seven digits, or the twelve that float64 may need."""
    value = leaf.values[at]
    if not leaf.is_inexact:
        return str(value)
    digits = 12 if leaf.dtype in ("float64", "complex128") else 7
    return f"{value:.{digits}g}"


def unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()
