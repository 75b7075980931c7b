"""Reads of uninitialised memory."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TOTAL = pl.BlockSpec((8, 128), lambda i: (0, 0))
SUM = jax.ShapeDtypeStruct((8, 128), F32)


def accumulator_zeroed_at_the_wrong_step(x: jax.Array) -> jax.Array:
    def sum_columns(x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        # At the last step of the sum, not the first: what came before it is lost, and at the very
        # first step nothing has been set.
        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]  # FAULT
        out_ref[...] = acc_ref[...]

    return _sum_columns(sum_columns, x)


def accumulator_zeroed_at_the_wrong_step_repaired(x: jax.Array) -> jax.Array:
    def sum_columns(x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        out_ref[...] = acc_ref[...]

    return _sum_columns(sum_columns, x)


def _sum_columns(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


def output_never_zeroed(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The output block is an accumulator as good as any, and as empty at the start.
        out_ref[...] += x_ref[...]  # FAULT

    return pl.pallas_call(sum_blocks, out_shape=SUM, grid=(4,), in_specs=[ROWS], out_specs=TOTAL)(x)


def output_never_zeroed_repaired(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    return pl.pallas_call(sum_blocks, out_shape=SUM, grid=(4,), in_specs=[ROWS], out_specs=TOTAL)(x)


def output_block_skipped(x: jax.Array) -> jax.Array:
    def keep_upper_half(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Where the condition fails nothing is written: that is not zero.
        @pl.when(pl.program_id(0) < 2)
        def _copy() -> None:
            out_ref[...] = x_ref[...]  # FAULT

    return pl.pallas_call(keep_upper_half, out_shape=x, grid=(4,), in_specs=[ROWS], out_specs=ROWS)(
        x
    )


def output_block_skipped_repaired(x: jax.Array) -> jax.Array:
    def keep_upper_half(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.where(pl.program_id(0) < 2, x_ref[...], 0.0)

    return pl.pallas_call(keep_upper_half, out_shape=x, grid=(4,), in_specs=[ROWS], out_specs=ROWS)(
        x
    )


def grid_rounded_down(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(
        double,
        out_shape=x,
        # 20 rows are two blocks and a half; the last four are never written.
        grid=(x.shape[0] // 8,),  # FAULT
        in_specs=[ROWS],
        out_specs=ROWS,
    )(x)


def grid_rounded_down_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(
        double, out_shape=x, grid=(pl.cdiv(x.shape[0], 8),), in_specs=[ROWS], out_specs=ROWS
    )(x)


def sum_over_whole_blocks(x: jax.Array) -> jax.Array:
    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...].sum(axis=0, keepdims=True)

    return pl.pallas_call(
        sum_rows,
        out_shape=jax.ShapeDtypeStruct((1, 128), F32),
        # 20 rows are two blocks and a half; the last four are never added.
        grid=(x.shape[0] // 8,),  # FAULT
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
    )(x)


def sum_over_whole_blocks_repaired(x: jax.Array) -> jax.Array:
    return padding_in_a_sum_repaired(x)


def padding_in_a_sum(x: jax.Array) -> jax.Array:
    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        # Of the last block only four rows are x; the others hold anything.
        out_ref[...] += x_ref[...].sum(axis=0, keepdims=True)  # FAULT

    return _sum_rows(sum_rows, x)


def padding_in_a_sum_repaired(x: jax.Array) -> jax.Array:
    n = x.shape[0]

    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        row = i * 8 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        out_ref[...] += jnp.where(row < n, x_ref[...], 0.0).sum(axis=0, keepdims=True)

    return _sum_rows(sum_rows, x)


def _sum_rows(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, 128), F32),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
    )(x)


def padding_masked_on_one_side(x: jax.Array, y: jax.Array) -> jax.Array:
    k = x.shape[1]

    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        column = step * 128 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        x_block = jnp.where(column < k, x_ref[...], 0.0)
        # Zeroing one side is not enough: the padding of the other may be NaN, and 0 * NaN is NaN.
        out_ref[...] += jnp.dot(x_block, y_ref[...], preferred_element_type=F32)  # FAULT

    return _matmul(matmul, x, y)


def padding_masked_on_one_side_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    k = x.shape[1]

    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        column = step * 128 + lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        row = step * 128 + lax.broadcasted_iota(jnp.int32, y_ref.shape, 0)
        x_block = jnp.where(column < k, x_ref[...], 0.0)
        y_block = jnp.where(row < k, y_ref[...], 0.0)
        out_ref[...] += jnp.dot(x_block, y_block, preferred_element_type=F32)

    return _matmul(matmul, x, y)


def _matmul(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        grid=(pl.cdiv(x.shape[1], 128),),
        in_specs=[
            pl.BlockSpec((8, 128), lambda step: (0, step)),
            pl.BlockSpec((128, 128), lambda step: (step, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda step: (0, 0)),
    )(x, y)


X = (jax.ShapeDtypeStruct((32, 128), F32),)
RAGGED = (jax.ShapeDtypeStruct((20, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="ValueMismatch",
        summary="The accumulator is zeroed at the last step of the sum, not at its first.",
        function=accumulator_zeroed_at_the_wrong_step,
        repaired=accumulator_zeroed_at_the_wrong_step_repaired,
        reference=lambda x: x[:, :128] + x[:, 128:],
        args=(jax.ShapeDtypeStruct((16, 256), F32),),
        hint="carried",
    ),
    BrokenKernel(
        fault="UninitializedRead",
        summary="A sum is accumulated in the output block, which was never set.",
        function=output_never_zeroed,
        repaired=output_never_zeroed_repaired,
        reference=lambda x: x.reshape(4, 8, 128).sum(axis=0),
        args=X,
    ),
    BrokenKernel(
        fault="OutputNotWritten",
        summary="Blocks that a condition leaves out are never written.",
        function=output_block_skipped,
        repaired=output_block_skipped_repaired,
        reference=lambda x: x.at[16:].set(0.0),
        args=X,
    ),
    BrokenKernel(
        fault="OutputNotWritten",
        summary="The grid is rounded down, and the last rows of the output belong to no block.",
        function=grid_rounded_down,
        repaired=grid_rounded_down_repaired,
        reference=lambda x: x * 2,
        args=RAGGED,
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="The grid is rounded down, and the last rows of the input are left out of a sum.",
        function=sum_over_whole_blocks,
        repaired=sum_over_whole_blocks_repaired,
        reference=lambda x: x.sum(axis=0, keepdims=True),
        args=RAGGED,
        hint="unread input",
    ),
    BrokenKernel(
        fault="PaddingRead",
        summary="The padding of the last block goes into a sum.",
        function=padding_in_a_sum,
        repaired=padding_in_a_sum_repaired,
        reference=lambda x: x.sum(axis=0, keepdims=True),
        args=RAGGED,
    ),
    BrokenKernel(
        fault="PaddingRead",
        summary="Only one side of a product is masked where the contracted dimension is ragged.",
        function=padding_masked_on_one_side,
        repaired=padding_masked_on_one_side_repaired,
        reference=lambda x, y: jnp.dot(x, y),
        args=(jax.ShapeDtypeStruct((8, 200), F32), jax.ShapeDtypeStruct((200, 128), F32)),
    ),
)
