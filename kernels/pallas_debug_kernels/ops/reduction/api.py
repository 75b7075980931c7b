"""Public API of the reduction of a matrix over one axis."""

import jax

from ..._arguments import LANES, check_dtype, check_ndim, checked_block, either, sublanes
from .kernel import launch

DTYPES = ("float32", "bfloat16", "int32")
KINDS = ("sum", "max")
AXES = (0, 1)


def reduction(
    x: jax.Array,
    *,
    kind: str = "sum",
    axis: int = 1,
    block_rows: int = 256,
    block_cols: int = 1024,
) -> jax.Array:
    """Compute the sum or maximum of `x` over one axis, accumulated in float32 (int32: in int32).

    Dimensions need not be multiples of their blocks.

    Args:
      x: float32, bfloat16 or int32 `[rows, cols]`.
      kind: "sum" or "max". Both propagate NaN.
      axis: 0 to reduce over rows, 1 to reduce over columns.
      block_rows: rows per grid step: a multiple of 8 (bfloat16: 16), or at least `rows`.
      block_cols: columns per grid step: a multiple of 128, or at least `cols`.

    Returns:
      `[cols]` for axis 0, `[rows]` for axis 1, with the dtype of `x`.

    Raises:
      ValueError: for any other shape, dtype, kind, axis or block size.
    """
    check_ndim("reduction", "x", x, ("rows", "cols"))
    check_dtype("reduction", "x", x, DTYPES)
    if kind not in KINDS:
        known = either([repr(name) for name in KINDS])
        raise ValueError(f"reduction: kind is {kind!r}. It must be {known}.")
    if isinstance(axis, bool) or axis not in AXES:
        raise ValueError(f"reduction: axis is {axis!r}. It must be 0 or 1.")
    rows, cols = x.shape
    tile = sublanes(x.dtype)
    out: jax.Array = launch(
        x,
        kind=kind,
        axis=int(axis),
        block_rows=checked_block(
            "reduction", "block_rows", block_rows, multiple=tile, dim="rows", size=rows
        ),
        block_cols=checked_block(
            "reduction", "block_cols", block_cols, multiple=LANES, dim="cols", size=cols
        ),
    )
    return out
