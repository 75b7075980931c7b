"""Public API of the vector sum."""

import jax

from ..._arguments import LANES, check_dtype, check_ndim, check_same_dtype, checked_block, sublanes
from .kernel import launch

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
