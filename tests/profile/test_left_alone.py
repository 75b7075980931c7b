"""Kernels that look slow, get no advice, and would be slower if they followed it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

import pallas_debug


def selected_rows(ids: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(ids_ref: Any, table_ref: Any, o_ref: Any) -> None:
        found = ids_ref[...] == lax.broadcasted_iota(jnp.int32, (256, 32), 1)
        o_ref[...] = jnp.dot(jnp.where(found, 1.0, 0.0), table_ref[...]) * (ids_ref[...] % 2)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((2048, 128), jnp.float32),
        grid=(8,),
        in_specs=[pl.BlockSpec((256, 1), lambda i: (i, 0)), pl.BlockSpec((32, 128))],
        out_specs=pl.BlockSpec((256, 128), lambda i: (i, 0)),
    )(ids, table)


@pytest.mark.slow
def test_columns_that_are_repeated_along_the_lanes_stay() -> None:
    """As a row, it would have to become a column, or the matrix transposed: 1.2 to 1.8 times."""
    ids = jax.ShapeDtypeStruct((2048, 1), jnp.int32)
    table = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    assert pallas_debug.stats(selected_rows, ids, table, target="v5e", estimate=False).advice == ()
