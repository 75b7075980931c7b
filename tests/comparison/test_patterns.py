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
        (np.s_[:], "[0:4, 0:16, 0:16]"),
        (np.s_[-2:, -4:], "[2:4, 12:16, 0:16]"),
        (np.s_[0, 2:5:2], "[0:1, 2:5:2, 0:16]"),
        (np.s_[..., 1::2], "[0:4, 0:16, 1:16:2]"),
        (np.s_[0, [1, 2, 6]], "[0:1, 1:7, 0:16]"),
        (np.s_[0, 3, 5], "[0:1, 3:4, 5:6]"),
    ],
)
@pytest.mark.parametrize(
    "value, how",
    [(7, ""), (0, "; each is zero"), (np.nan, "; each is NaN"), (-np.inf, "; each is infinite")],
)
def test_where_and_what(at: Any, where: str, value: float, how: str) -> None:
    wrong = NORMAL * (1 + 1e-6)
    wrong[at] = value
    assert message(wrong, NORMAL) == f"within {where}{how}"


def test_scalars_integers_and_booleans() -> None:
    assert message(3.0, 2.0) == "the only element"
    numbers = np.arange(1, 9)
    assert message(numbers * 0, numbers, "int32") == "within [0:8]; each is zero"
    assert message(numbers < 0, numbers > 2, "bool") == "within [2:8]; each is zero"
