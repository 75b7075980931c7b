"""Kernels for the softmax of rows and its gradient.

The content of a ragged block past the last row is undefined; rows do not affect one another.
"""

from collections.abc import Callable
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


def softmax_backward_kernel(out_ref: jax.Ref, dout_ref: jax.Ref, dx_ref: jax.Ref) -> None:
    """Compute the gradient of one block from its output; all refs are `[block_rows, features]`."""
    out, dout = out_ref[...].astype(jnp.float32), dout_ref[...].astype(jnp.float32)
    along_out = jnp.sum(out * dout, axis=1, keepdims=True)  # [block_rows, 1]
    dx_ref[...] = (out * (dout - along_out)).astype(dx_ref.dtype)


@partial(jax.jit, static_argnames=("block_rows",))
def launch(x: jax.Array, *, block_rows: int) -> jax.Array:
    """Run the forward kernel over blocks of rows of `[rows, features]`."""
    out: jax.Array = _by_rows(softmax_kernel, "softmax", block_rows, x)
    return out


@partial(jax.jit, static_argnames=("block_rows",))
def launch_backward(out: jax.Array, dout: jax.Array, *, block_rows: int) -> jax.Array:
    """Run the backward kernel over blocks of rows of `[rows, features]`."""
    dx: jax.Array = _by_rows(softmax_backward_kernel, "softmax_backward", block_rows, out, dout)
    return dx


def _by_rows(
    kernel: Callable[..., None], name: str, block_rows: int, *arrays: jax.Array
) -> jax.Array:
    """Run `kernel` over blocks of rows of `arrays`, all with the shape and dtype of the output."""
    rows, features = arrays[0].shape
    block = pl.BlockSpec((block_rows, features), lambda i: (i, jnp.int32(0)))
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, features), arrays[0].dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block] * len(arrays),
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=5 * rows * features,
            transcendentals=rows * features,
            bytes_accessed=sum(array.nbytes for array in arrays) + arrays[0].nbytes,
        ),
        name=name,
    )
    out: jax.Array = call(*arrays)
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
    out: jax.Array = _softmax(rows, block)
    return out.reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(x: jax.Array, block_rows: int) -> jax.Array:
    out: jax.Array = launch(x, block_rows=block_rows)
    return out


def _forward(x: jax.Array, block_rows: int) -> tuple[jax.Array, jax.Array]:
    out = _softmax(x, block_rows)
    return out, out


def _backward(block_rows: int, out: jax.Array, dout: jax.Array) -> tuple[jax.Array]:
    return (launch_backward(out, dout, block_rows=block_rows),)


_softmax.defvjp(_forward, _backward)
