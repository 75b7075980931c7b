"""Conditions that tell the wrong elements of a block from the right ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compared import F32, double, line_of, one
from jax import lax
from jax.experimental import pallas as pl

X = jnp.arange(20.0 * 128).reshape(20, 128) + 1


def masked(x: jax.Array, *, wrong: bool, right: int = 0) -> jax.Array:
    """Double, but add to columns from `right` on where the condition is `wrong`."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        columns = lax.broadcasted_iota(jnp.int32, (1, 128), 1)
        is_left = columns <= 100  # CONDITION
        value = x_ref[...] * 2
        bad = jnp.where(columns + x_ref[...].astype(jnp.int32) * 0 >= right, value + 100, value)
        o_ref[...] = jnp.where(is_left, bad if wrong else value, value if wrong else bad)  # STORE

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct(x.shape, F32)
    return pl.pallas_call(kernel, out_shape=out, grid=(3,), in_specs=[rows], out_specs=rows)(x)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_condition_that_the_wrong_elements_share(wrong: bool) -> None:
    finding = one(lambda x: masked(x, wrong=wrong), double, X)
    line, store = line_of(masked, "# CONDITION"), line_of(masked, "# STORE")
    assert finding.source is not None
    assert finding.other is not None
    assert (finding.source.line, finding.other.line) == (line, store)
    assert finding.cause == (
        f"all wrong elements of this block are where the condition in line {line} is "
        f"{str(wrong).lower()}"
    )
    where = "columns 0 to 100, none in 101 to 127" if wrong else "columns 101 to 127, none in 0 to"
    assert finding.values["pattern"].startswith(f"in {where}")


def test_in_a_block_that_reaches_past_the_end() -> None:
    is_last = jnp.arange(20)[:, None] >= 16

    def reference(x: jax.Array) -> jax.Array:
        return jnp.where(is_last, x * 2, masked(x, wrong=True))

    finding = one(lambda x: masked(x, wrong=True), reference, X)
    assert finding.grid_point == (2,)
    assert "is true" in str(finding.cause)


def test_there_is_no_cause_if_right_elements_share_the_value() -> None:
    finding = one(lambda x: masked(x, wrong=True, right=50), double, X)
    assert "in columns 50 to 100" in finding.values["pattern"]
    assert finding.cause == ""
    finding = one(lambda x: masked(x, wrong=True), lambda x: x * 3, X)
    assert finding.cause == ""
    assert finding.advice
