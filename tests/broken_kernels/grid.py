"""Grid points that write the same output block in an order, or concurrently, as TPUs forbid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32 = jnp.float32


@fault(
    "OutputRevisited",
    "The sum of a matrix product is the outermost grid axis, not the innermost.",
    jnp.dot,
    jax.ShapeDtypeStruct((16, 256), F32),
    jax.ShapeDtypeStruct((256, 128), F32),
)
def contraction_outermost(x, y, *, repaired=False):
    # All rows for the first term of the sum, then all rows for the second.
    row, term = (0, 1) if repaired else (1, 0)

    def matmul(x_ref, y_ref, out_ref):
        @pl.when(pl.program_id(term) == 0)
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    return pl.pallas_call(
        matmul,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda *at: (at[row], at[term])),
            pl.BlockSpec((128, 128), lambda *at: (at[term], 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda *at: (at[row], 0)),  # FAULT
    )(x, y)


@fault(
    "DataRace",
    "A sum is accumulated over a grid axis declared parallel.",
    lambda x: x.reshape(4, 8, 128).sum(axis=0),
    jax.ShapeDtypeStruct((32, 128), F32),
)
def parallel_sum(x, *, repaired=False):
    def sum_blocks(x_ref, out_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    semantics = "arbitrary" if repaired else "parallel"
    return pl.pallas_call(
        sum_blocks,
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        # Every grid point adds to one block, and two cores share the grid points.
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),  # FAULT
        compiler_params=pltpu.CompilerParams(dimension_semantics=(semantics,)),
    )(x)
