"""Steps that are skipped, and loops that end early."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal, table

I32 = jnp.int32
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


@equals(lambda x: np.argmax(x > 90)[None].astype(np.int32), integers(0, 100, 64))
@called(jax.ShapeDtypeStruct((1,), I32), block=SMEM)
def first_large_number(x_ref, out_ref):
    out_ref[0] = lax.while_loop(
        lambda i: (i < 64) & (x_ref[jnp.minimum(i, 63)] <= 90), lambda i: i + 1, 0
    )


@equals(
    lambda x, y: np.searchsorted(x, y).astype(np.int32),
    np.sort(integers(0, 1000, 64)),
    integers(0, 1000, 8),
)
@called(in_specs=[SMEM, SMEM], out_specs=SMEM)
def binary_search(x_ref, y_ref, out_ref):
    def search(i, _):
        def halve(bounds):
            low, high = bounds
            middle = (low + high) // 2
            is_less = x_ref[middle] < y_ref[i]
            return jnp.where(is_less, middle + 1, low), jnp.where(is_less, high, middle)

        out_ref[i] = lax.while_loop(lambda b: b[0] < b[1], halve, (0, 64))[0]

    lax.fori_loop(0, 8, search, None)


@equals(lambda x: np.argmax(x.max(1) > 2.5)[None].astype(np.int32), normal(64, 128))
@called(
    jax.ShapeDtypeStruct((1,), I32),
    grid=(8,),
    in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
    out_specs=SMEM,
    scratch_shapes=[pltpu.SMEM((1,), I32)],
)
def first_row_over_a_limit(x_ref, out_ref, found_ref):
    """A flag in SMEM ends the search; later blocks are not looked at."""
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _():
        found_ref[0] = 0
        out_ref[0] = -1

    @pl.when(found_ref[0] == 0)
    def _():
        over = x_ref[...].max(1) > 2.5
        row = lax.broadcasted_iota(I32, (8, 1), 0)[:, 0]
        first = jnp.where(over, row, 8).min()

        @pl.when(first < 8)
        def _():
            out_ref[0] = i * 8 + first
            found_ref[0] = 1


@equals(lambda op, x: (x + 1, x * 2, -x)[op[0]], table(2), normal(8, 128))
@called(in_specs=[SMEM, pl.BlockSpec()])
def one_of_three_branches(op_ref, x_ref, out_ref):
    branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]
    out_ref[...] = lax.switch(op_ref[0], branches, x_ref[...])
