"""Public API of layer normalisation."""

import math
from functools import partial
from numbers import Real

import jax

from ..._arguments import check_dtype, check_ndim, checked_block, sublanes
from .kernel import launch, launch_backward

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
