"""Kernels for layer normalisation and its gradient."""

import math
from functools import partial
from numbers import Real

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import check_dtype, check_ndim, checked_block, sublanes

_PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))


def layer_norm_kernel(
    x_ref: jax.Ref,  # [block_rows, features]
    weight_ref: jax.Ref,  # [1, features]
    bias_ref: jax.Ref,  # [1, features]
    out_ref: jax.Ref,  # [block_rows, features]
    *,
    eps: float,
) -> None:
    """Normalise one block of rows; the padding past the last row affects no other row."""
    normalized, _ = _normalize(x_ref[...].astype(jnp.float32), eps)
    out = normalized * weight_ref[...].astype(jnp.float32) + bias_ref[...].astype(jnp.float32)
    out_ref[...] = out.astype(out_ref.dtype)


def layer_norm_backward_kernel(
    x_ref: jax.Ref,  # [block_rows, features]
    weight_ref: jax.Ref,  # [1, features]
    dout_ref: jax.Ref,  # [block_rows, features]
    dx_ref: jax.Ref,  # [block_rows, features]
    dweight_ref: jax.Ref,  # [1, features], float32: the sum over this block's rows
    dbias_ref: jax.Ref,  # [1, features], float32: the sum over this block's rows
    *,
    rows: int,
    eps: float,
) -> None:
    """Compute the gradient of one block of rows, and its share of those of weight and bias."""
    x, dout = x_ref[...].astype(jnp.float32), dout_ref[...].astype(jnp.float32)
    block_rows = x.shape[0]
    if rows % block_rows:
        # Past the last row a block's content is undefined, and the sums here run over the rows.
        remaining = rows - pl.program_id(0) * block_rows
        x, dout = _keep_first(x, remaining), _keep_first(dout, remaining)
    normalized, inverse_std = _normalize(x, eps)
    dnormalized = dout * weight_ref[...].astype(jnp.float32)
    # Mean and standard deviation depend on x too: subtract dnormalized's components along both.
    along_mean = jnp.mean(dnormalized, axis=1, keepdims=True)  # [block_rows, 1]
    along_std = jnp.mean(dnormalized * normalized, axis=1, keepdims=True)
    dx = inverse_std * (dnormalized - along_mean - normalized * along_std)
    dx_ref[...] = dx.astype(dx_ref.dtype)
    dweight_ref[...] = jnp.sum(dout * normalized, axis=0, keepdims=True)
    dbias_ref[...] = jnp.sum(dout, axis=0, keepdims=True)


def _normalize(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    """Return rows of mean 0 and variance 1, and 1 / standard deviation `[block_rows, 1]`."""
    centered = x - jnp.mean(x, axis=1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=1, keepdims=True)
    inverse_std = lax.rsqrt(variance + eps)
    return centered * inverse_std, inverse_std


def _keep_first(block: jax.Array, count: jax.Array) -> jax.Array:
    """Return `block` with zeros from row `count` on."""
    row = lax.broadcasted_iota(jnp.int32, block.shape, 0)
    kept: jax.Array = jnp.where(row < count, block, jnp.zeros_like(block))
    return kept


@partial(jax.jit, static_argnames=("eps", "block_rows"))
def launch(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float, block_rows: int
) -> jax.Array:
    """Run the forward kernel over blocks of rows."""
    rows, features = x.shape
    block, vector = _specs(block_rows, features)
    normalize = pl.pallas_call(
        partial(layer_norm_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block, vector, vector],
        out_specs=block,
        compiler_params=_PARALLEL,
        cost_estimate=pl.CostEstimate(
            flops=8 * x.size, transcendentals=rows, bytes_accessed=2 * x.nbytes
        ),
        name="layer_norm",
    )
    out: jax.Array = normalize(x, weight.reshape(1, -1), bias.reshape(1, -1))
    return out


@partial(jax.jit, static_argnames=("eps", "block_rows"))
def launch_backward(
    x: jax.Array, weight: jax.Array, dout: jax.Array, *, eps: float, block_rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of x, weight and bias; the last two in float32.

    Every block of rows writes its own sums, so that the grid stays parallel.
    """
    rows, features = x.shape
    num_blocks = pl.cdiv(rows, block_rows)
    block, vector = _specs(block_rows, features)
    partial_sum = pl.BlockSpec((None, 1, features), lambda i: (i, jnp.int32(0), jnp.int32(0)))
    partial_sums = jax.ShapeDtypeStruct((num_blocks, 1, features), jnp.float32)
    backward = pl.pallas_call(
        partial(layer_norm_backward_kernel, rows=rows, eps=eps),
        out_shape=(jax.ShapeDtypeStruct(x.shape, x.dtype), partial_sums, partial_sums),
        grid=(num_blocks,),
        in_specs=[block, vector, block],
        out_specs=(block, partial_sum, partial_sum),
        compiler_params=_PARALLEL,
        cost_estimate=pl.CostEstimate(
            flops=16 * x.size, transcendentals=rows, bytes_accessed=3 * x.nbytes
        ),
        name="layer_norm_backward",
    )
    dx, dweight, dbias = backward(x, weight.reshape(1, -1), dout)
    return dx, dweight.sum(axis=(0, 1)), dbias.sum(axis=(0, 1))


def _specs(block_rows: int, features: int) -> tuple[pl.BlockSpec, pl.BlockSpec]:
    """Return specs for blocks of whole rows of `[rows, features]`, and for `[1, features]`."""
    return (
        pl.BlockSpec((block_rows, features), lambda i: (i, jnp.int32(0))),
        pl.BlockSpec((1, features), lambda i: (jnp.int32(0), jnp.int32(0))),
    )


DTYPES = ("float32", "bfloat16")

_Residuals = tuple[jax.Array, jax.Array, jax.Array]


def layer_norm(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    *,
    eps: float = 1e-5,
    block_rows: int = 128,
) -> jax.Array:
    """Normalise each row of `x` to mean 0 and variance 1, and return it `* weight + bias`.

    Mean and variance are float32. The gradient is a separate kernel, which recomputes them.

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
    out: jax.Array = _layer_norm(x, weight, bias, float(eps), block)
    return out


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float, block_rows: int
) -> jax.Array:
    out: jax.Array = launch(x, weight, bias, eps=eps, block_rows=block_rows)
    return out


def _forward(
    x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float, block_rows: int
) -> tuple[jax.Array, _Residuals]:
    return _layer_norm(x, weight, bias, eps, block_rows), (x, weight, bias)


def _backward(
    eps: float, block_rows: int, residuals: _Residuals, dout: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, weight, bias = residuals
    dx, dweight, dbias = launch_backward(x, weight, dout, eps=eps, block_rows=block_rows)
    return dx, dweight.astype(weight.dtype), dbias.astype(bias.dtype)


_layer_norm.defvjp(_forward, _backward)
