"""Public API of the softmax of rows."""

from functools import partial

import jax

from ..._arguments import check_dtype, check_not_empty, checked_block, sublanes
from .kernel import launch, launch_backward

DTYPES = ("float32", "bfloat16")


def softmax(x: jax.Array, *, block_rows: int = 128) -> jax.Array:
    """Compute the softmax of `x` over its last axis in float32.

    A whole row is in VMEM at once. A row of only `-inf` gives NaN, as in jax.nn.softmax.

    Args:
      x: float32 or bfloat16 `[..., features]`.
      block_rows: rows of `features` per grid step: a multiple of 8 (bfloat16: 16), or at least the
        number of rows, which need not be a multiple of it.

    Returns:
      An array with the shape and dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    check_not_empty("softmax", "x", x, ("...", "features"))
    check_dtype("softmax", "x", x, DTYPES)
    rows = x.reshape(-1, x.shape[-1])
    block = checked_block(
        "softmax",
        "block_rows",
        block_rows,
        multiple=sublanes(x.dtype),
        dim="the number of rows",
        size=rows.shape[0],
    )
    out: jax.Array = _softmax(rows, block)
    return out.reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(x: jax.Array, block_rows: int) -> jax.Array:
    out: jax.Array = launch(x, block_rows=block_rows)
    return out


def _forward(x: jax.Array, block_rows: int) -> tuple[jax.Array, jax.Array]:
    out = _softmax(x, block_rows)
    return out, out


def _backward(block_rows: int, out: jax.Array, dout: jax.Array) -> tuple[jax.Array]:
    return (launch_backward(out, dout, block_rows=block_rows),)


_softmax.defvjp(_forward, _backward)
