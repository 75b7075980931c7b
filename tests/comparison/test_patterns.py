"""Patterns: recognised where all differing elements have them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pallas_debug.comparison import patterns
from pallas_debug.comparison.differences import Differences, Leaf
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.findings.wording.regions import region_text, relation_text

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
    pair = patterns.Pair(
        found.actual.wide,
        found.expected.wide,
        found.bad,
        found.room,
        is_exact=not found.actual.is_inexact,
    )
    where = region_text(patterns.region(found.bad))
    return where, [relation_text(r, found.bad.ndim) for r in patterns.relations(pair)]


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
        (np.s_[:3], "the first 3 rows"),
        (np.s_[2:5], "rows 2 to 4"),
        (np.s_[5:6], "row 5"),
        (np.s_[2:5:2], "rows 2 and 4"),
        (np.s_[:, -4:], "the last 4 columns"),
        (np.s_[:, 3:4], "column 3"),
        (np.s_[:, 1::2], "every other column, from 1"),
        (np.s_[2::4], "every 4th row, from 2"),
        (np.s_[2:12:3], "every 3rd row, from 2 to 11"),
        (np.s_[[1, 2, 6]], "3 of 16 rows, from 1 to 6"),
        (np.s_[-8:, ::2], "every other column, from 0 of the last 8 rows"),
        (np.s_[3, 5], "column 5 of row 3"),
    ],
)
def test_where(at: Any, where: str) -> None:
    assert message(changed(B, at), B) == (where, [])


def test_where_in_three_dimensions_in_one_and_in_none() -> None:
    assert message(changed(C, np.s_[2]), C)[0] == "index 2 of dimension 0"
    assert message(changed(C, np.s_[1:3]), C)[0] == "indices 1 to 2 of dimension 0"
    assert message(changed(C, np.s_[-2:, -4:]), C)[0] == (
        "the last 4 rows of the last 2 indices of dimension 0"
    )
    line = B[0]
    assert message(changed(line, np.s_[::2]), line)[0] == "every other element, from 0"
    assert message(3.0, 2.0) == ("the only element", [])


def test_a_region_that_is_not_full_has_a_share() -> None:
    lower = np.tril(np.ones((16, 16), bool))
    assert message(np.where(lower, B**2 + 3, B), B)[0] == "53% of all elements"
    lower[:8] = False
    assert message(np.where(lower, B**2 + 3, B), B)[0] == "78% of the elements of the last 8 rows"
    assert message(changed(C, ([0, 3], [1, 1], [1, 2])), C)[0].startswith("50% of the elements of ")
    large = np.ones((64, 64))
    most = np.full((64, 64), 3.0) + np.arange(64)
    most[0, 0] = 1.0
    assert message(most, large)[0] == "over 99.9% of all elements"


R = np.s_[4:12]


@pytest.mark.parametrize(
    "actual, how",
    [
        (changed(B, R, lambda y: y * 0), "each is zero"),
        (changed(B, R, lambda y: y * np.nan), "each is NaN"),
        (changed(B, R, lambda y: abs(y) * np.inf), "each is infinite"),
        (changed(B, R, lambda y: y * 0 + 7), "each is 7, whatever is expected"),
        (changed(B, R, lambda y: noise(y * 2)), "each is 2 times what is expected"),
        (changed(B, R, lambda y: noise(y / 3)), "each is 0.3333 times what is expected"),
        (changed(B, R, lambda y: noise(y * 11.3137085)), "each is 11.31 times what is expected"),
        (changed(B, R, lambda y: -y), "each is the negative of what is expected"),
        (changed(B, R, lambda y: noise(y) + 5), "each is what is expected plus 5"),
        (changed(B, R, lambda y: noise(y) - 0.25), "each is what is expected plus -0.25"),
        (
            changed(B, R, lambda y: y * np.arange(2, 10)[:, None]),
            "each row has a factor of its own, from 2 to 9",
        ),
        (
            changed(B, R, lambda y: y * np.arange(2, 18)),
            "each column has a factor of its own, from 2 to 17",
        ),
        (B.T, "each is what is expected with row and column exchanged"),
        (np.roll(B, 1, 0), "each is what is expected 1 row before it, around the end"),
        (np.roll(B, -3, 1), "each is what is expected 3 columns after it, around the end"),
        (changed(B, R, lambda y: B[2:10]), "each is what is expected 2 rows before it"),
        (changed(B, R, lambda y: B[5:13]), "each is what is expected 1 row after it"),
        (
            np.concatenate([B[:2] ** 2 + 3, B[:-2]]),
            "88% of these are what is expected 2 rows before it",
        ),
    ],
)
def test_how(actual: np.ndarray, how: str) -> None:
    assert message(actual, B)[1] == [how]


def test_how_integers_bools_and_complex_numbers_differ() -> None:
    assert message(N * 2, N, "int32")[1] == ["each is 2 times what is expected"]
    assert message(N + 1, N, "int32")[1] == ["each is what is expected plus 1"]
    sums = N * 40
    assert message(sums.astype(np.int8), sums, "int8")[1] == ["each is off by a multiple of 256"]
    truth = N > 0
    assert message(np.zeros_like(truth), truth, "bool")[1] == ["each is zero"]
    assert message(np.ones_like(truth), truth, "bool")[1] == ["each is 1 where 0 is expected"]
    z = B + 1j * B.T
    assert message(z * 2j, z, "complex64")[1] == ["each is 0+2j times what is expected"]
    huge = np.full((4, 4), 2**60) + np.arange(4)
    assert message(huge + 1, huge, "int64")[1] == []  # float64 does not hold them


def test_a_part_that_is_nan_or_zero_has_its_share_and_says_nothing_of_the_others() -> None:
    part = changed(B, R, lambda y: y * 2)
    part[4:6] = np.nan
    assert message(part, B)[1] == ["25% of these are NaN"]
    part[4:10] = 0
    assert message(part, B)[1] == ["75% of these are zero"]
    rare = changed(B, np.s_[:], lambda y: y * 2)
    rare[0, 0] = 0.0
    assert message(rare, B)[1] == []


def test_no_pattern_is_read_into_few_or_equal_elements() -> None:
    assert message(changed(B, (3, 5)), B)[1] == []
    ones = np.ones((8, 8))
    assert message(ones * 3, ones)[1] == ["each is 3 where 1 is expected"]
    assert message(RNG.standard_normal((16, 16)), B)[1] == []
    nearly = changed(B, R, lambda y: y * 2)
    nearly[5, 5] = B[5, 5] * 2.5
    assert message(nearly, B)[1] == []


def test_a_constant_of_32_bits_is_shown_with_all_its_digits() -> None:
    least = np.full((16, 16), np.iinfo(np.int32).min, np.int64)
    assert message(least, N, "int32")[1] == ["each is -2147483648, whatever is expected"]


def test_a_factor_per_slice_is_told_from_a_term_per_slice() -> None:
    signs = np.where(np.arange(16) % 2, 1, -1)[:, None]
    assert message(300 + B + signs, 300 + B)[1] == []
    repeated = np.repeat(B[:1], 16, axis=0)
    assert message(repeated + B[1], repeated)[1] == []


def test_a_relation_explains_much_more_than_the_tolerance_allows() -> None:
    # With so large a tolerance any factor close to 1 would fit.
    loud = B * (1 + RNG.uniform(0.03, 0.05, B.shape))
    found = differences(loud, B, rtol=0.02, atol=0.0)
    pair = patterns.Pair(found.actual.wide, B, found.bad, found.room, is_exact=False)
    assert found.count == B.size
    assert patterns.relations(pair) == ()
