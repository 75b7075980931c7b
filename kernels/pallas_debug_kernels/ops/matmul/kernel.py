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

from ..._arguments import (
    LANES,
    check_dtype,
    check_ndim,
    check_same_dtype,
    checked_block,
    either,
    sublanes,
)


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


DTYPES = ("float32", "bfloat16", "int8")
ACTIVATIONS = (None, "relu", "silu", "gelu")
INT8_ACTIVATIONS = (None, "relu")


def matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: str | None = None,
    block_m: int = 512,
    block_n: int = 512,
    block_k: int = 512,
) -> jax.Array:
    """Compute `activation(x @ y)`, accumulated in float32 (int8: in int32).

    float32 inputs are multiplied at full float32 precision. Dimensions need not be multiples of
    their blocks. TPU v4 has no int8 matmul: its compiler rejects int8 with error E2001.

    The default blocks leave room for every dtype in 16 MiB of VMEM. `pallas-debug stats` advises
    larger ones for large bfloat16 and int8 matrices (`small-blocks`), rightly: at 4,096, blocks of
    1,024 x 1,024 x 512 take 55 % of the estimated cycles on v6e and 75 % on v5e (bfloat16, libtpu
    0.0.42). In float32 they fit on neither v5e nor v5p.

    Args:
      x: float32, bfloat16 or int8 `[m, k]`.
      y: `[k, n]`, with the dtype of `x`.
      activation: applied to the accumulator: None, "relu", "silu" or "gelu" (the tanh
        approximation). int8 supports only None and "relu".
      block_m: rows of `x` per grid step: a multiple of 8 (bfloat16: 16, int8: 32), or at least `m`.
      block_n: columns of `y` per grid step: a multiple of 128, or at least `n`.
      block_k: terms summed per grid step: a multiple of 128, or at least `k`.

    Returns:
      `[m, n]`, with the dtype of `x` (int8: int32).

    Raises:
      ValueError: for any other shape, dtype, activation or block size.
    """
    check_ndim("matmul", "x", x, ("m", "k"))
    check_ndim("matmul", "y", y, ("k", "n"))
    (m, k), n = x.shape, y.shape[1]
    if y.shape[0] != k:
        raise ValueError(
            f"matmul: y has shape {y.shape}. Its first dimension must be {k}, the last one of x."
        )
    check_dtype("matmul", "x", x, DTYPES)
    check_same_dtype("matmul", "y", y, "x", x)
    _check_activation(activation, x)
    tile = sublanes(x.dtype)
    out: jax.Array = launch(
        x,
        y,
        activation=activation,
        block_m=checked_block("matmul", "block_m", block_m, multiple=tile, dim="m", size=m),
        block_n=checked_block("matmul", "block_n", block_n, multiple=LANES, dim="n", size=n),
        block_k=checked_block("matmul", "block_k", block_k, multiple=LANES, dim="k", size=k),
    )
    return out


def _check_activation(activation: str | None, x: jax.Array) -> None:
    is_int8 = x.dtype.name == "int8"
    known = INT8_ACTIVATIONS if is_int8 else ACTIVATIONS
    if activation not in known:
        raise ValueError(
            f"matmul: activation is {activation!r}. "
            f"It must be {either([repr(name) for name in known])}{' for int8' * is_int8}."
        )
