"""Reads of uninitialised memory."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl

from .record import fault

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = jax.ShapeDtypeStruct((32, 128), F32)
RAGGED = jax.ShapeDtypeStruct((20, 128), F32)
ROW = jax.ShapeDtypeStruct((1, 128), F32)
TOTAL = pl.BlockSpec((1, 128), lambda i: (0, 0))


@fault(
    "UninitializedRead",
    "A sum is accumulated in the output block, which was never set.",
    lambda x: x.reshape(4, 8, 128).sum(axis=0),
    X,
)
@called(
    jax.ShapeDtypeStruct((8, 128), F32),
    grid=(4,),
    in_specs=[ROWS],
    out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
)
def output_never_zeroed(x_ref, out_ref, repaired=False):
    if repaired:

        @pl.when(pl.program_id(0) == 0)
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

    # The output block is an accumulator as good as any, and as empty at the start.
    out_ref[...] += x_ref[...]  # FAULT


@fault(
    "OutputNotWritten",
    "Blocks that a condition leaves out are never written.",
    lambda x: x.at[16:].set(0.0),
    X,
)
@called(grid=(4,), block=ROWS)
def output_block_skipped(x_ref, out_ref, repaired=False):
    if repaired:
        out_ref[...] = jnp.zeros_like(out_ref)

    # Where the condition fails nothing is written: that is not zero.
    @pl.when(pl.program_id(0) < 2)
    def _copy():
        out_ref[...] = x_ref[...]  # FAULT


@fault(
    "OutputNotWritten",
    "The grid is rounded down, and the last rows of the output belong to no block.",
    lambda x: x * 2,
    RAGGED,
)
def grid_rounded_down(x, *, repaired=False):
    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    rows = x.shape[0] + (7 if repaired else 0)
    return pl.pallas_call(
        double,
        out_shape=x,
        # 20 rows are two blocks and a half; the last four are never written.
        grid=(rows // 8,),  # FAULT
        in_specs=[ROWS],
        out_specs=ROWS,
    )(x)


@fault(
    "ValueMismatch",
    "The grid is rounded down, and the last rows of the input are left out of a sum.",
    lambda x: x.sum(axis=0, keepdims=True),
    RAGGED,
    hint="unread input",
)
def sum_over_whole_blocks(x, *, repaired=False):
    num_rows = x.shape[0]

    def add_rows(x_ref, out_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

        row = pl.program_id(0) * 8 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        rows = jnp.where(row < num_rows, x_ref[...], 0.0)
        out_ref[...] += rows.sum(axis=0, keepdims=True)

    return pl.pallas_call(
        add_rows,
        out_shape=ROW,
        # 20 rows are two blocks and a half; the last four are never added.
        grid=(pl.cdiv(num_rows, 8) if repaired else num_rows // 8,),  # FAULT
        in_specs=[ROWS],
        out_specs=TOTAL,
    )(x)


@fault(
    "PaddingRead",
    "The padding of the last block goes into a sum.",
    lambda x: x.sum(axis=0, keepdims=True),
    RAGGED,
)
@called(ROW, grid=(3,), in_specs=[ROWS], out_specs=TOTAL)
def padding_in_a_sum(x_ref, out_ref, repaired=False):
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _start():
        out_ref[...] = jnp.zeros_like(out_ref)

    row = i * 8 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
    counts = row < (20 if repaired else 24)
    # Of the last block only four rows are x; the others hold anything.
    out_ref[...] += jnp.where(counts, x_ref[...], 0.0).sum(axis=0, keepdims=True)  # FAULT


@fault(
    "PaddingRead",
    "Only one side of a product is masked where the contracted dimension is ragged.",
    jnp.dot,
    jax.ShapeDtypeStruct((8, 200), F32),
    jax.ShapeDtypeStruct((200, 128), F32),
)
@called(
    jax.ShapeDtypeStruct((8, 128), F32),
    grid=(2,),
    in_specs=[
        pl.BlockSpec((8, 128), lambda step: (0, step)),
        pl.BlockSpec((128, 128), lambda step: (step, 0)),
    ],
    out_specs=pl.BlockSpec((8, 128), lambda step: (0, 0)),
)
def padding_masked_on_one_side(x_ref, y_ref, out_ref, repaired=False):
    step = pl.program_id(0)

    @pl.when(step == 0)
    def _start():
        out_ref[...] = jnp.zeros_like(out_ref)

    column = step * 128 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
    row = step * 128 + lax.broadcasted_iota(jnp.int32, y_ref.shape, 0)
    x = jnp.where(column < 200, x_ref[...], 0.0)
    counts = row < (200 if repaired else 256)
    # Zeroing one side is not enough: the padding of the other may be NaN, and 0 * NaN is NaN.
    out_ref[...] += jnp.dot(x, jnp.where(counts, y_ref[...], 0.0))  # FAULT
