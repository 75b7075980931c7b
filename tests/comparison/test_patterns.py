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


def message(a: Any, b: Any, dtype: str = "float32") -> tuple[str, list[str]]:
    """Where two arrays differ, and how, as messages say it."""
    found = differences(a, b, dtype)
    where = str(patterns.region(found.bad))
    return where, [str(one) for one in patterns.special(found.actual.wide, found.bad)]


def noise(x: np.ndarray, size: float = 1e-6) -> np.ndarray:
    return np.asarray(x * (1 + size * RNG.standard_normal(x.shape)))


def changed(x: np.ndarray, at: Any, change: Callable[[Any], Any] = lambda y: y**2 + 3) -> Any:
    out = noise(x)
    out[at] = change(x[at])
    return out


@pytest.mark.parametrize(
    "at, where",
    [
        (np.s_[:], "all elements"),
        (np.s_[-3:], "the last 3 rows"),
        (np.s_[2:5], "rows 2 to 4"),
        (np.s_[2:5:2], "rows 2 and 4"),
        (np.s_[:, -4:], "the last 4 columns"),
        (np.s_[:, 1::2], "columns 1 to 15 in steps of 2"),
        (np.s_[2:12:3], "rows 2 to 11 in steps of 3"),
        (np.s_[[1, 2, 6]], "3 of 16 rows, from 1 to 6"),
        (np.s_[-8:, ::2], "columns 0 to 14 in steps of 2 of the last 8 rows"),
        (np.s_[3, 5], "column 5 of row 3"),
    ],
)
def test_where(at: Any, where: str) -> None:
    assert message(changed(B, at), B) == (where, [])


def test_where_in_three_dimensions_in_one_and_in_none() -> None:
    assert message(changed(C, np.s_[1:3]), C)[0] == "indices 1 to 2 of dimension 0"
    assert message(changed(C, np.s_[-2:, -4:]), C)[0] == (
        "the last 4 rows of the last 2 indices of dimension 0"
    )
    line = B[0]
    assert message(changed(line, np.s_[::2]), line)[0] == "elements 0 to 14 in steps of 2"
    assert message(3.0, 2.0) == ("the only element", [])


def test_a_region_that_is_not_full_has_a_share() -> None:
    lower = np.tril(np.ones((16, 16), bool))
    assert message(np.where(lower, B**2 + 3, B), B)[0] == "53% of all elements"
    assert message(changed(C, ([0, 3], [1, 1], [1, 2])), C)[0].startswith("50% of the elements of ")
    large = np.ones((64, 64))
    most = np.full((64, 64), 3.0) + np.arange(64)
    most[0, 0] = 1.0
    assert message(most, large)[0] == "over 99.9% of all elements"


@pytest.mark.parametrize(
    "change, how",
    [
        (lambda y: y * 0, ["each is zero"]),
        (lambda y: y * np.nan, ["each is NaN"]),
        (lambda y: abs(y) * np.inf, ["each is infinite"]),
        (lambda y: y * 2, []),
    ],
)
def test_special_values(change: Callable[[Any], Any], how: list[str]) -> None:
    assert message(changed(B, np.s_[4:12], change), B)[1] == how


def test_special_values_have_their_share() -> None:
    part = changed(B, np.s_[4:12], lambda y: y * 2)
    part[4:6] = np.nan
    assert message(part, B)[1] == ["25% of these are NaN"]
    rare = changed(B, np.s_[:], lambda y: y * 2)
    rare[0, 0] = 0.0
    assert message(rare, B)[1] == []
    assert message(N * 0, N, "int32")[1] == ["each is zero"]
    truth = N > 0
    assert message(np.zeros_like(truth), truth, "bool")[1] == ["each is zero"]
