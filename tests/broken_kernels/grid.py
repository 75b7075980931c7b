"""Grid points that write the same output block in an order, or concurrently, as TPUs forbid."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TOTAL = pl.BlockSpec((8, 128), lambda i: (0, 0))
SUM = jax.ShapeDtypeStruct((8, 128), F32)
PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))


def contraction_outermost(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    return pl.pallas_call(
        matmul,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        # All rows for the first term of the sum, then all rows for the second.
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda k, i: (i, k)),
            pl.BlockSpec((128, 128), lambda k, i: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda k, i: (i, 0)),  # FAULT
    )(x, y)


def contraction_outermost_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    return pl.pallas_call(
        matmul,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
    )(x, y)


def parallel_sum(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    return pl.pallas_call(
        sum_blocks,
        out_shape=SUM,
        grid=(4,),
        in_specs=[ROWS],
        # Every grid point adds to one block, and two cores share the grid points.
        out_specs=TOTAL,  # FAULT
        compiler_params=PARALLEL,
    )(x)


def parallel_sum_repaired(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    return pl.pallas_call(sum_blocks, out_shape=SUM, grid=(4,), in_specs=[ROWS], out_specs=TOTAL)(x)


X = (jax.ShapeDtypeStruct((32, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="OutputRevisited",
        summary="The sum of a matrix product is the outermost grid axis, not the innermost.",
        function=contraction_outermost,
        repaired=contraction_outermost_repaired,
        reference=lambda x, y: jnp.dot(x, y),
        args=(jax.ShapeDtypeStruct((16, 256), F32), jax.ShapeDtypeStruct((256, 128), F32)),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="A sum is accumulated over a grid axis declared parallel.",
        function=parallel_sum,
        repaired=parallel_sum_repaired,
        reference=lambda x: x.reshape(4, 8, 128).sum(axis=0),
        args=X,
    ),
)
