"""Kernel for the softmax of rows.

The content of a ragged block past the last row is undefined; rows do not affect one another.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import check_dtype, check_not_empty, checked_block, sublanes


def softmax_kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
    """Compute the softmax of one block; both refs are `[block_rows, features]`."""
    x = x_ref[...].astype(jnp.float32)
    exp = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))  # at most 1
    out_ref[...] = (exp / jnp.sum(exp, axis=1, keepdims=True)).astype(out_ref.dtype)


@partial(jax.jit, static_argnames=("block_rows",))
def launch(x: jax.Array, *, block_rows: int) -> jax.Array:
    """Run the kernel over blocks of rows of `[rows, features]`."""
    rows, features = x.shape
    block = pl.BlockSpec((block_rows, features), lambda i: (i, jnp.int32(0)))
    call = pl.pallas_call(
        softmax_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=5 * x.size, transcendentals=x.size, bytes_accessed=2 * x.nbytes
        ),
        name="softmax",
    )
    out: jax.Array = call(x)
    return out


DTYPES = ("float32", "bfloat16")


def softmax(x: jax.Array, *, block_rows: int = 128) -> jax.Array:
    """Compute the softmax of `x` over its last axis in float32.

    A whole row is in VMEM at once. A row of only `-inf` gives NaN, as in jax.nn.softmax.

    Args:
      x: float32 or bfloat16 `[..., features]`.
      block_rows: rows of `features` per grid step: a multiple of 8 (bfloat16: 16), or at least the
        number of rows, which need not be a multiple of it.

    Returns:
      An array with the shape and dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    check_not_empty("softmax", "x", x, ("...", "features"))
    check_dtype("softmax", "x", x, DTYPES)
    rows = x.reshape(-1, x.shape[-1])
    block = checked_block(
        "softmax",
        "block_rows",
        block_rows,
        multiple=sublanes(x.dtype),
        dim="the number of rows",
        size=rows.shape[0],
    )
    out: jax.Array = launch(rows, block_rows=block)
    return out.reshape(x.shape)
