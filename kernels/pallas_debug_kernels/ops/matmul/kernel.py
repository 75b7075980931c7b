"""Kernel of the matrix product."""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike


def matmul_kernel(
    x_ref: jax.Ref,  # [block_m, block_k]
    y_ref: jax.Ref,  # [block_k, block_n]
    out_ref: jax.Ref,  # [block_m, block_n]
    acc_ref: jax.Ref,  # [block_m, block_n], float32 or int32
    *,
    k: int,
    activation: str | None,
) -> None:
    """Add one term of the sum over k blocks; the last grid step along k writes the output."""
    step = pl.program_id(2)
    last_step = pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, acc_ref.dtype)

    block_k = x_ref.shape[1]
    x, y = x_ref[...], y_ref[...]
    if k % block_k:
        # Past the end of k a block's content is undefined and may be NaN: zero both operands.
        remaining = k - step * block_k
        x = _keep_first(x, remaining, axis=1)
        y = _keep_first(y, remaining, axis=0)
    acc_ref[...] += jnp.dot(
        x, y, precision=_precision(x.dtype), preferred_element_type=acc_ref.dtype
    )  # [block_m, block_n]

    @pl.when(step == last_step)
    def _finish() -> None:
        out_ref[...] = _activate(acc_ref[...], activation).astype(out_ref.dtype)


def _keep_first(block: jax.Array, count: jax.Array, *, axis: int) -> jax.Array:
    """Return `block` with zeros from index `count` of `axis` on."""
    index = lax.broadcasted_iota(jnp.int32, block.shape, axis)
    kept: jax.Array = jnp.where(index < count, block, jnp.zeros_like(block))
    return kept


def _activate(z: jax.Array, activation: str | None) -> jax.Array:
    match activation:
        case "relu":
            z = jnp.maximum(z, 0)
        case "silu":
            z = z * lax.logistic(z)
        case "gelu":
            inner = math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z)
            z = 0.5 * z * (1 + jnp.tanh(inner))
    return z


def _precision(dtype: DTypeLike) -> lax.Precision:
    """Return HIGHEST for float32, which the MXU otherwise rounds to bfloat16."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


@partial(jax.jit, static_argnames=("activation", "block_m", "block_n", "block_k"))
def launch(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: str | None,
    block_m: int,
    block_n: int,
    block_k: int,
) -> jax.Array:
    """Run the kernel over the grid (m, n, k), with k innermost to keep the accumulator in VMEM."""
    (m, k), n = x.shape, y.shape[1]
    is_integer = x.dtype == jnp.int8
    acc_dtype = jnp.int32 if is_integer else jnp.float32
    out_dtype = acc_dtype if is_integer else x.dtype
    multiply = pl.pallas_call(
        partial(matmul_kernel, k=k, activation=activation),
        out_shape=jax.ShapeDtypeStruct((m, n), out_dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
            pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), acc_dtype)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * m * n * k,
            transcendentals=m * n if activation in ("silu", "gelu") else 0,
            bytes_accessed=(m * k + k * n) * x.dtype.itemsize
            + m * n * jnp.dtype(out_dtype).itemsize,
        ),
        name="matmul",
    )
    out: jax.Array = multiply(x, y)
    return out
