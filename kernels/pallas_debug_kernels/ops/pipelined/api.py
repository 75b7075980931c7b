"""Public API of a copy and a matrix product whose DMAs are part of the kernel."""

import jax

from ..._arguments import (
    LANES,
    check_dtype,
    check_ndim,
    check_same_dtype,
    divisor_block,
    sublanes,
)
from . import dma, emitted

COPY_DTYPES = ("float32", "bfloat16", "int32")
MATMUL_DTYPES = ("float32", "bfloat16")


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
    block = _copy_block("dma_copy", x, block_rows)
    out: jax.Array = dma.launch_copy(x, block_rows=block)
    return out


def pipelined_copy(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """Copy `x` through VMEM, with the DMAs of `pltpu.emit_pipeline`.

    Args:
      x: float32, bfloat16 or int32 `[rows, cols]`.
      block_rows: rows per DMA: a multiple of 8 (bfloat16: 16) that divides `rows`, or at least
        `rows`.

    Returns:
      `[rows, cols]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    block = _copy_block("pipelined_copy", x, block_rows)
    out: jax.Array = emitted.launch_copy(x, block_rows=block)
    return out


def dma_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int = 256,
    block_n: int = 256,
    block_k: int = 256,
) -> jax.Array:
    """Compute `x @ y`, reading the next blocks while the current ones are multiplied.

    Accumulated in float32; float32 inputs are multiplied at full float32 precision.

    Args:
      x: float32 or bfloat16 `[m, k]`.
      y: `[k, n]`, with the dtype of `x`.
      block_m: rows of `x` per DMA: a multiple of 8 (bfloat16: 16) that divides `m`, or at least
        `m`.
      block_n: columns of `y` per DMA: a multiple of 128 that divides `n`, or at least `n`.
      block_k: terms summed per DMA: a multiple of 128 that divides `k`, or at least `k`.

    Returns:
      `[m, n]`, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    blocks = _matmul_blocks("dma_matmul", x, y, (block_m, block_n, block_k))
    out: jax.Array = dma.launch_matmul(x, y, blocks=blocks)
    return out


def pipelined_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int = 256,
    block_n: int = 256,
    block_k: int = 256,
) -> jax.Array:
    """Compute `x @ y`, with the DMAs of `pltpu.emit_pipeline`.

    Arguments, result and errors are those of `dma_matmul`.
    """
    blocks = _matmul_blocks("pipelined_matmul", x, y, (block_m, block_n, block_k))
    out: jax.Array = emitted.launch_matmul(x, y, blocks=blocks)
    return out


def _copy_block(operation: str, x: jax.Array, block_rows: int) -> int:
    check_ndim(operation, "x", x, ("rows", "cols"))
    check_dtype(operation, "x", x, COPY_DTYPES)
    return divisor_block(
        operation,
        "block_rows",
        block_rows,
        multiple=sublanes(x.dtype),
        dim="rows",
        size=x.shape[0],
    )


def _matmul_blocks(
    operation: str, x: jax.Array, y: jax.Array, blocks: tuple[int, int, int]
) -> tuple[int, int, int]:
    check_ndim(operation, "x", x, ("m", "k"))
    check_ndim(operation, "y", y, ("k", "n"))
    (m, k), n = x.shape, y.shape[1]
    if y.shape[0] != k:
        raise ValueError(
            f"{operation}: y has shape {y.shape}. "
            f"Its first dimension must be {k}, the last one of x."
        )
    check_dtype(operation, "x", x, MATMUL_DTYPES)
    check_same_dtype(operation, "y", y, "x", x)
    tile = sublanes(x.dtype)
    return (
        divisor_block(operation, "block_m", blocks[0], multiple=tile, dim="m", size=m),
        divisor_block(operation, "block_n", blocks[1], multiple=LANES, dim="n", size=n),
        divisor_block(operation, "block_k", blocks[2], multiple=LANES, dim="k", size=k),
    )
