"""Public API of the matrix product."""

import jax

from ..._arguments import (
    LANES,
    check_dtype,
    check_ndim,
    check_same_dtype,
    checked_block,
    either,
    sublanes,
)
from .kernel import launch

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
