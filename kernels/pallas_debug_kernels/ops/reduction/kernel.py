"""Kernel of the reduction of a matrix over one axis."""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike


def reduction_kernel(
    x_ref: jax.Ref,  # [block_rows, block_cols]
    out_ref: jax.Ref,  # [1, block_cols] for axis 0, [block_rows, 1] for axis 1; the accumulator
    *,
    kind: str,
    axis: int,
    size: int,
) -> None:
    """Add one block to the output block, which stays in VMEM while the grid runs along `axis`.

    The reduced axis is the last of the grid, so that the visits of an output block are consecutive.
    """
    step = pl.program_id(1)
    identity = _identity(kind, out_ref.dtype)

    @pl.when(step == 0)
    def _start() -> None:
        out_ref[...] = jnp.full(out_ref.shape, identity, out_ref.dtype)

    block_size = x_ref.shape[axis]
    x = x_ref[...].astype(out_ref.dtype)
    if size % block_size:
        # Past the end of the axis a block's content is undefined.
        index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        x = jnp.where(index < size - step * block_size, x, jnp.full_like(x, identity))
    if kind == "sum":
        out_ref[...] += jnp.sum(x, axis=axis, keepdims=True, dtype=out_ref.dtype)
    else:
        out_ref[...] = jnp.maximum(out_ref[...], jnp.max(x, axis=axis, keepdims=True))


def _identity(kind: str, dtype: DTypeLike) -> int | float:
    """Return the identity element of the reduction."""
    if kind == "sum":
        return 0
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).min)
    return -float("inf")


@partial(jax.jit, static_argnames=("kind", "axis", "block_rows", "block_cols"))
def launch(x: jax.Array, *, kind: str, axis: int, block_rows: int, block_cols: int) -> jax.Array:
    """Run the kernel over the grid (kept axis, reduced axis)."""
    rows, cols = x.shape
    acc_dtype = jnp.int32 if x.dtype == jnp.int32 else jnp.float32
    row_blocks, col_blocks = pl.cdiv(rows, block_rows), pl.cdiv(cols, block_cols)
    x_block = (block_rows, block_cols)
    if axis == 0:
        grid = (col_blocks, row_blocks)
        in_spec = pl.BlockSpec(x_block, lambda kept, step: (step, kept))
        out_spec = pl.BlockSpec((1, block_cols), lambda kept, step: (jnp.int32(0), kept))
        out_shape = (1, cols)
    else:
        grid = (row_blocks, col_blocks)
        in_spec = pl.BlockSpec(x_block, lambda kept, step: (kept, step))
        out_spec = pl.BlockSpec((block_rows, 1), lambda kept, step: (kept, jnp.int32(0)))
        out_shape = (rows, 1)
    reduce = pl.pallas_call(
        partial(reduction_kernel, kind=kind, axis=axis, size=x.shape[axis]),
        out_shape=jax.ShapeDtypeStruct(out_shape, acc_dtype),
        grid=grid,
        in_specs=[in_spec],
        out_specs=out_spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=x.nbytes),
        name="reduction",
    )
    out: jax.Array = reduce(x)
    return out.reshape(-1).astype(x.dtype)
