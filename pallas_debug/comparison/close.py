"""Comparison of intermediate values that two kernels store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.comparison.differences import INEXACT, unravel
from pallas_debug.comparison.tolerances import MASK, Allowed, Tolerance


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """Tolerance for intermediate values: that of the least precise dtype in either kernel.

    An element that may be a mask equals any other of its sign, such as minus infinity.
    """

    tolerance: Tolerance
    dtypes: tuple[str, str]

    @classmethod
    def of(cls, tolerance: Tolerance, launches: Sequence[Launch]) -> Closeness:
        names = [
            [operand.type.dtype.name for operand in launch.operands if _is_inexact(operand.type)]
            for launch in launches
        ]
        coarse = [max(of_one, key=_coarseness, default="float32") for of_one in names]
        return cls(tolerance=tolerance, dtypes=(coarse[0], coarse[1]))

    def first(self, a: np.ndarray, b: np.ndarray, largest: float = 0.0) -> tuple[int, ...] | None:
        """The first element in which two arrays of the same shape differ; None if there is none.

        Args:
          largest: magnitude of earlier contents of the same memory, at which a sum may have
            rounded.
        """
        if not self.compares(a, b):
            return None
        if not _is_inexact(a):
            bad = np.asarray(a != b)
        else:
            x, y = _wide(a), _wide(b)
            with np.errstate(invalid="ignore", over="ignore"):
                close = np.abs(x - y) <= self._allowed(y, largest).at(y)
                are_masks = (np.abs(x) >= MASK) & (np.abs(y) >= MASK)
                if x.dtype.kind == "f":
                    are_masks &= np.sign(x) == np.sign(y)
            close = close & np.isfinite(y) | are_masks
            bad = ~(close | (x == y) | (np.isnan(x) & np.isnan(y)))
        return unravel(int(np.argmax(bad)), bad.shape) if bad.any() else None

    @staticmethod
    def compares(a: np.ndarray, b: np.ndarray) -> bool:
        """Return whether two arrays can be compared: both contain floats, or both integers."""
        return _is_inexact(a) == _is_inexact(b) and not (a.dtype.names or b.dtype.names)

    @staticmethod
    def size(array: np.ndarray) -> float:
        """Largest magnitude in an array of floats, apart from masks; 0 for others."""
        if not _is_inexact(array):
            return 0.0
        size = np.abs(_wide(array))
        return float(size[size < MASK].max(initial=0.0))

    def _allowed(self, expected: np.ndarray, largest: float) -> Allowed:
        size = np.abs(expected)
        return self.tolerance.of(self.dtypes, np.where(size < MASK, expected, 0.0), largest)

    @staticmethod
    def text(value: Any) -> str:
        """Format a value for messages."""
        if not _is_inexact(value):
            return str(value)
        wide = _wide(np.asarray(value))[()]
        return f"{wide:.7g}"


def _coarseness(name: str) -> float:
    rtol = Tolerance().of((name, name), np.zeros(())).rtol
    return rtol if math.isfinite(rtol) else 0.0


def _is_inexact(array: Any) -> bool:
    return str(array.dtype.name).startswith(INEXACT)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
