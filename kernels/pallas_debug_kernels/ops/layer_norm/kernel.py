"""Kernel for layer normalisation."""

import math
from functools import partial
from numbers import Real

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import check_dtype, check_ndim, checked_block, sublanes


def layer_norm_kernel(
    x_ref: jax.Ref,  # [block_rows, features]
    weight_ref: jax.Ref,  # [1, features]
    bias_ref: jax.Ref,  # [1, features]
    out_ref: jax.Ref,  # [block_rows, features]
    *,
    eps: float,
) -> None:
    """Normalise one block of rows; the padding past the last row affects no other row."""
    x = x_ref[...].astype(jnp.float32)
    centered = x - jnp.mean(x, axis=1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=1, keepdims=True)
    normalized = centered * lax.rsqrt(variance + eps)
    out = normalized * weight_ref[...].astype(jnp.float32) + bias_ref[...].astype(jnp.float32)
    out_ref[...] = out.astype(out_ref.dtype)


@partial(jax.jit, static_argnames=("eps", "block_rows"))
def launch(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float, block_rows: int
) -> jax.Array:
    """Run the kernel over blocks of rows."""
    rows, features = x.shape
    block = pl.BlockSpec((block_rows, features), lambda i: (i, jnp.int32(0)))
    vector = pl.BlockSpec((1, features), lambda i: (jnp.int32(0), jnp.int32(0)))
    normalize = pl.pallas_call(
        partial(layer_norm_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block, vector, vector],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=8 * x.size, transcendentals=rows, bytes_accessed=2 * x.nbytes
        ),
        name="layer_norm",
    )
    out: jax.Array = normalize(x, weight.reshape(1, -1), bias.reshape(1, -1))
    return out


DTYPES = ("float32", "bfloat16")


def layer_norm(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    *,
    eps: float = 1e-5,
    block_rows: int = 128,
) -> jax.Array:
    """Normalise each row of `x` to mean 0 and variance 1, and return it `* weight + bias`.

    Mean and variance are float32.

    Args:
      x: float32 or bfloat16 `[rows, features]`.
      weight: float32 or bfloat16 `[features]`.
      bias: float32 or bfloat16 `[features]`.
      eps: added to the variance.
      block_rows: rows per grid step: a multiple of 8 (bfloat16: 16), or at least `rows`. `rows`
        need not be a multiple of it.

    Returns:
      `[rows, features]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype, eps or block size.
    """
    check_ndim("layer_norm", "x", x, ("rows", "features"))
    rows, features = x.shape
    check_dtype("layer_norm", "x", x, DTYPES)
    for name, array in (("weight", weight), ("bias", bias)):
        check_ndim("layer_norm", name, array, ("features",))
        if array.shape != (features,):
            raise ValueError(
                f"layer_norm: {name} has shape {array.shape}. "
                f"It must be ({features},), the last dimension of x."
            )
        check_dtype("layer_norm", name, array, DTYPES)
    if not isinstance(eps, Real) or not math.isfinite(eps) or eps < 0:
        raise ValueError(f"layer_norm: eps is {eps!r}. It must be a finite number, at least 0.")
    block = checked_block(
        "layer_norm", "block_rows", block_rows, multiple=sublanes(x.dtype), dim="rows", size=rows
    )
    out: jax.Array = launch(x, weight, bias, eps=float(eps), block_rows=block)
    return out
