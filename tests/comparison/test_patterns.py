"""Where elements differ, and whether they are NaN, infinite or zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pallas_debug.comparison import patterns
from pallas_debug.comparison.differences import Differences, Leaf
from pallas_debug.comparison.tolerances import Tolerance

NORMAL = np.random.default_rng(0).standard_normal((4, 16, 16))


def message(a: Any, b: Any, dtype: str = "float32") -> str:
    """Where two arrays differ, and how, as messages say it."""
    pair = [Leaf(path="", dtype=dtype, values=np.asarray(x)) for x in (a, b)]
    found = Differences(*pair, Tolerance())
    return str(patterns.pattern(found.actual.wide, found.bad))


@pytest.mark.parametrize(
    "at, where",
    [
        (np.s_[:], ""),
        (np.s_[-2:], "in dimension 0 at 2 to 3, none in 0 to 1"),
        (np.s_[:, -4:], "in rows 12 to 15, none in 0 to 11"),
        (np.s_[:, 2:5:2], "in rows 2 to 4 in steps of 2, none in 0 to 1 and 5 to 15"),
        (np.s_[..., 1::2], "in columns 1 to 15 in steps of 2, none in 0"),
        (np.s_[:, [1, 2, 6]], "in rows 1 to 6, none in 0 and 7 to 15"),
        (np.s_[:, 3, 15], "in row 3, none in 0 to 2 and 4 to 15, in column 15, none in 0 to 14"),
    ],
)
@pytest.mark.parametrize(
    "value, how",
    [(7, ""), (0, "each is zero"), (np.nan, "each is NaN"), (-np.inf, "each is infinite")],
)
def test_where_and_what(at: Any, where: str, value: float, how: str) -> None:
    wrong = NORMAL * (1 + 1e-6)
    wrong[at] = value
    assert message(wrong, NORMAL) == ", ".join(filter(None, [where, how]))


def test_scalars_integers_and_booleans() -> None:
    assert message(3.0, 2.0) == ""
    numbers = np.arange(1, 9)
    assert message(numbers * 0, numbers, "int32") == "each is zero"
    assert (
        message(numbers < 0, numbers > 2, "bool")
        == "in columns 2 to 7, none in 0 to 1, each is zero"
    )
