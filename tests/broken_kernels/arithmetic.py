"""Arithmetic on numbers of a table."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
SHARES = pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1, grid=(3,), in_specs=[ROWS], out_specs=ROWS
)


def search_reference(ends, x):
    groups = jnp.searchsorted(ends, jnp.arange(3) * 8, side="right")
    return x * jnp.repeat(groups, 8)[:, None].astype(F32)


@fault(
    "EndlessLoop",
    "A binary search keeps its lower end, for some entries of the table.",
    search_reference,
    jax.ShapeDtypeStruct((5,), I32),
    jax.ShapeDtypeStruct((24, 128), F32),
    values={0: [4, 8, 16, 24, 32]},
)
@called(grid_spec=SHARES)
def search_that_does_not_narrow(ends_ref, x_ref, out_ref, repaired=False):
    row = pl.program_id(0) * 8

    def step(between):
        low, high = between
        middle = (low + high) // 2
        is_after = ends_ref[middle] <= row
        # With high = low + 1 the middle is low, and low stays as it is.
        narrowed = middle + 1 if repaired else middle
        return jnp.where(is_after, narrowed, low), jnp.where(is_after, high, middle)

    start = (jnp.int32(0), jnp.int32(4))
    group, _ = lax.while_loop(lambda b: b[0] < b[1], step, start)  # FAULT
    out_ref[...] = x_ref[...] * group.astype(F32)
