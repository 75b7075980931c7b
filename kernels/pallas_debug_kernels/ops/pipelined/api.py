"""Public API of a copy whose DMAs are part of the kernel."""

import jax

from ..._arguments import check_dtype, check_ndim, divisor_block, sublanes
from .kernel import launch

DTYPES = ("float32", "bfloat16", "int32")


def dma_copy(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """Copy `x` through VMEM, reading the next block while the last one is written.

    Args:
      x: float32, bfloat16 or int32 `[rows, cols]`.
      block_rows: rows per DMA: a multiple of 8 (bfloat16: 16) that divides `rows`, or at least
        `rows`.

    Returns:
      `[rows, cols]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    check_ndim("dma_copy", "x", x, ("rows", "cols"))
    check_dtype("dma_copy", "x", x, DTYPES)
    block = divisor_block(
        "dma_copy",
        "block_rows",
        block_rows,
        multiple=sublanes(x.dtype),
        dim="rows",
        size=x.shape[0],
    )
    out: jax.Array = launch(x, block_rows=block)
    return out
