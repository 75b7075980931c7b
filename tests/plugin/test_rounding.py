"""Arrays of a failed assertion that rounding may explain, with a tolerance that allows it."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pallas_debug_pytest.rounding import no_more_than_rounding

EPS = np.finfo(np.float32).eps
FAR_APART = np.array([0.0, 1.0, -4096.0], np.float32)


@pytest.mark.parametrize(
    "actual,expected,what,allows",
    [
        (
            FAR_APART * (1 + 3 * EPS),
            FAR_APART,
            "3.6e-07 of the expected element: 3",
            {"rtol": 4e-7},
        ),
        (FAR_APART + 4e-4, FAR_APART, "1.2e-07 of the largest one, 4096: 1", {"atol": 5e-4}),
        (
            FAR_APART * (1 + 4 * EPS) + np.float32([1e-5, 0, 0]),
            FAR_APART,
            "4.8e-07 of the largest one, 4096: 4",
            {"rtol": 5e-7, "atol": 1e-5},
        ),
        (FAR_APART + 0.1, FAR_APART, None, {}),
        (FAR_APART, FAR_APART, None, {}),
        (np.float32([1, np.nan]), np.float32([1, 1]), None, {}),
        (np.float32([1 + EPS, np.nan]), np.float32([1, np.nan]), "element: 1", {"rtol": 2e-7}),
        (np.float32([1, np.inf]), np.float32([1, 1]), None, {}),
        ((FAR_APART * (1 + 2**-7)).astype(jnp.bfloat16), FAR_APART, "bfloat16", {"rtol": 8e-3}),
        (np.array([1, 2]), np.array([1, 3]), None, {}),
        (np.ones(2, np.float32), np.ones(3, np.float32), None, {}),
        (np.ones(2, np.float32), np.float32(1 + EPS), "element: 1 unit of", {"rtol": 2e-7}),
    ],
)
def test_arrays_that_differ_by_no_more_than_rounding(
    actual: Any, expected: Any, what: str | None, allows: dict[str, float]
) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    text = no_more_than_rounding(actual, expected)
    if what is None:
        assert text is None
        return
    assert text is not None
    assert what in text
    assert re.search(r"; (rtol|rtol=\S+ with atol|atol)=\S+ allows that$", text)
    given = {name: float(number) for name, number in re.findall(r"(rtol|atol)=(\S+)", text)}
    assert given.keys() == allows.keys()
    assert all(number <= allows[name] * 1.25 for name, number in given.items())
    np.testing.assert_allclose(actual.astype(np.float64), expected, **{"rtol": 0.0, **given})
