"""Kernel of the vector sum.

The kernel treats a vector as rows of 128 lanes: to lower a one-dimensional block, jax queries the
chip, and fails if there is none.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import LANES, check_dtype, check_ndim, check_same_dtype, checked_block, sublanes


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


DTYPES = ("float32", "bfloat16", "int32")


def vector_add(x: jax.Array, y: jax.Array, *, block_size: int = 64 * 1024) -> jax.Array:
    """Compute the sum `x + y` of two vectors.

    Args:
      x: float32, bfloat16 or int32 `[n]`.
      y: `[n]`, with the dtype of `x`.
      block_size: elements per grid step: a multiple of 1024 (bfloat16: 2048), or at least `n`. `n`
        need not be a multiple of it. If `n` is not a multiple of 128, `x` and `y` are copied.

    Returns:
      `[n]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    check_ndim("vector_add", "x", x, ("n",))
    check_ndim("vector_add", "y", y, ("n",))
    if y.shape != x.shape:
        raise ValueError(
            f"vector_add: y has shape {y.shape}. It must be {x.shape}, the shape of x."
        )
    check_dtype("vector_add", "x", x, DTYPES)
    check_same_dtype("vector_add", "y", y, "x", x)
    block = checked_block(
        "vector_add",
        "block_size",
        block_size,
        multiple=LANES * sublanes(x.dtype),
        dim="n",
        size=x.shape[0],
    )
    out: jax.Array = launch(x, y, block_size=block)
    return out
