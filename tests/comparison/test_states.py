"""Causes of wrong results: states that are carried too far, and sums that are stored too early."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compared import line_of, one
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32 = jnp.float32


def differences(x: jax.Array) -> jax.Array:
    """Differences of the rows of two sequences; the second goes on with the first."""

    def kernel(x_ref: Any, o_ref: Any, last: Any) -> None:
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _() -> None:
            last[...] = jnp.zeros_like(last)

        o_ref[0] = x_ref[0] - last[0]
        o_ref[1:] = x_ref[1:] - x_ref[:-1]
        last[0] = x_ref[7]

    rows = pl.BlockSpec((8, 128), lambda i, j: (i * 2 + j, 0))
    return pl.pallas_call(
        kernel, grid=(2, 2), in_specs=[rows], out_specs=rows, out_shape=x,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)  # fmt: skip


@pytest.mark.slow
def test_what_the_last_step_of_a_row_of_the_grid_left() -> None:
    def right(x: jax.Array) -> jax.Array:
        return jnp.diff(x.reshape(2, 16, 128), axis=1, prepend=0).reshape(32, 128)

    finding = one(differences, right, jnp.arange(32.0)[:, None] + jnp.zeros((32, 128)))
    line = line_of(differences, "last[0] = x_ref[7]")
    assert finding.cause == (
        f"last holds what line {line} set at grid point (0, 1), where grid dimension 0 was at 0; "
        "if nothing should carry over from one step of it to the next, that value is stale"
    )
    assert finding.advice == (
        "if so, set last at the first step of each: @pl.when(pl.program_id(1) == 0)"
    )


def sums(x: jax.Array, *, first: int = 0, last: int = 2) -> jax.Array:
    """Sums of three blocks: reset at the steps up to one, and stored at a step."""

    def kernel(x_ref: Any, o_ref: Any, acc: Any) -> None:
        @pl.when(pl.program_id(0) <= first)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += x_ref[...]

        @pl.when(pl.program_id(0) == last)
        def _() -> None:
            o_ref[...] = acc[...]

    return pl.pallas_call(
        kernel, grid=(3,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
    )(x)  # fmt: skip


X = jnp.arange(24.0)[:, None] ** 2 + jnp.arange(128.0)


def right_sums(x: jax.Array) -> jax.Array:
    return x.reshape(3, 8, 128).sum(0)


@pytest.mark.slow
def test_a_sum_that_is_stored_before_the_last_step_of_its_block() -> None:
    finding = one(functools.partial(sums, last=1), right_sums, X)
    assert finding.cause == (
        f"line {line_of(sums, 'o_ref[...] = acc')} stores the block at grid point (1,), but its "
        "last grid point is (2,): anything added after the store is not in the result"
    )
    assert finding.advice == "store at the last step of each block, after the last addition"


@pytest.mark.slow
def test_a_sum_that_the_last_step_of_its_block_begins() -> None:
    finding = one(functools.partial(sums, first=2), right_sums, X)
    assert finding.cause == (
        "3 grid points share the block, but the stored value comes only from grid point (2,): "
        f"line {line_of(sums, 'jnp.zeros_like')} sets acc there"
    )
    assert finding.advice == (
        "if it should combine all of them, set acc only at the first step of each block, and "
        "update the previous value at the others"
    )


def sums_in_place(x: jax.Array) -> jax.Array:
    """Sums of three blocks in the output itself, which each step resets."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) >= 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    return pl.pallas_call(
        kernel, grid=(3,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
    )(x)  # fmt: skip


@pytest.mark.slow
def test_a_sum_in_the_output_that_each_step_begins() -> None:
    finding = one(sums_in_place, right_sums, X)
    line = line_of(sums_in_place, "jnp.zeros_like")
    assert finding.cause == (
        "3 grid points share the block, but the stored value comes only from grid point (2,): "
        f"line {line} sets o_ref there"
    )
