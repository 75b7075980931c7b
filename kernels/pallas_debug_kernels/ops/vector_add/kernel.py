"""Kernel of the vector sum.

The kernel treats a vector as rows of 128 lanes: to lower a one-dimensional block, jax queries the
chip, and fails if there is none.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import LANES


def vector_add_kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
    """Add one block; all three refs are `[block_rows, 128]`."""
    out_ref[...] = x_ref[...] + y_ref[...]


@partial(jax.jit, static_argnames=("block_size",))
def launch(x: jax.Array, y: jax.Array, *, block_size: int) -> jax.Array:
    """Run the kernel over `[n]` in blocks; the last block may extend past the end."""
    (n,) = x.shape
    rows, block_rows = pl.cdiv(n, LANES), pl.cdiv(block_size, LANES)
    block = pl.BlockSpec((block_rows, LANES), lambda i: (i, jnp.int32(0)))
    add = pl.pallas_call(
        vector_add_kernel,
        out_shape=jax.ShapeDtypeStruct((rows, LANES), x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name="vector_add",
    )
    out: jax.Array = add(_as_rows(x), _as_rows(y))  # [rows, 128]
    return out.reshape(-1)[:n]


def _as_rows(x: jax.Array) -> jax.Array:
    """Return `[n]` as `[rows, 128]`, padded with zeros."""
    padded: jax.Array = jnp.pad(x, (0, -x.size % LANES))
    return padded.reshape(-1, LANES)
