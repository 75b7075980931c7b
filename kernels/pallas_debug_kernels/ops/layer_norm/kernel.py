"""Kernels for layer normalisation and its gradient."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

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
