"""Where elements differ, and whether they are NaN, infinite or zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pallas_debug.comparison import patterns
from pallas_debug.comparison.differences import Differences, Leaf
from pallas_debug.comparison.tolerances import Tolerance

RNG = np.random.default_rng(0)
B = RNG.standard_normal((16, 16))
C = RNG.standard_normal((4, 16, 16))
N = RNG.integers(-100, 100, (16, 16))


def differences(a: Any, b: Any, dtype: str = "float32", **tolerance: float) -> Differences:
    pair = [Leaf(path="", dtype=dtype, values=np.asarray(x)) for x in (a, b)]
    return Differences(*pair, Tolerance(**tolerance))


def message(a: Any, b: Any, dtype: str = "float32") -> str:
    """Where two arrays differ, and how, as messages say it."""
    found = differences(a, b, dtype)
    return str(patterns.pattern(found.actual.wide, found.bad))


def noise(x: np.ndarray, size: float = 1e-6) -> np.ndarray:
    return np.asarray(x * (1 + size * RNG.standard_normal(x.shape)))


def changed(x: np.ndarray, at: Any, change: Callable[[Any], Any] = lambda y: y**2 + 3) -> Any:
    out = noise(x)
    out[at] = change(x[at])
    return out


@pytest.mark.parametrize(
    "at, where",
    [
        (np.s_[:], "[0:16, 0:16]"),
        (np.s_[-3:], "[13:16, 0:16]"),
        (np.s_[5:6], "[5:6, 0:16]"),
        (np.s_[2:5:2], "[2:5:2, 0:16]"),
        (np.s_[:, 1::2], "[0:16, 1:16:2]"),
        (np.s_[[1, 2, 6]], "[1:7, 0:16]"),
        (np.s_[3, 5], "[3:4, 5:6]"),
    ],
)
def test_where(at: Any, where: str) -> None:
    assert message(changed(B, at), B) == f"within {where}"


def test_where_in_three_dimensions_and_in_none() -> None:
    assert message(changed(C, np.s_[-2:, -4:]), C) == "within [2:4, 12:16, 0:16]"
    assert message(3.0, 2.0) == "the only element"


R = np.s_[4:12]


@pytest.mark.parametrize(
    "actual, how",
    [
        (changed(B, R, lambda y: y * 0), "; each is zero"),
        (changed(B, R, lambda y: y * np.nan), "; each is NaN"),
        (changed(B, R, lambda y: abs(y) * np.inf), "; each is infinite"),
        (changed(B, R, lambda y: y * 2), ""),
    ],
)
def test_special_values(actual: np.ndarray, how: str) -> None:
    assert message(actual, B) == f"within [4:12, 0:16]{how}"


def test_special_values_of_other_dtypes() -> None:
    assert message(N * 0, N, "int32").endswith("; each is zero")
    truth = N > 0
    assert message(np.zeros_like(truth), truth, "bool").endswith("; each is zero")
