"""Outputs and aliased operands: overwritten too early, lost, written twice or in part."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import (
    BrokenKernel,
    MachineFinding,
)

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
HBM = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


def rolled_in_place(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Grid point 0 writes block 3, and grid point 3 reads it: too late for what x held.
        out_ref[...] = x_ref[...]  # FAULT

    return _moved(copy, x, lambda i: ((i + 3) % 4, 0), in_place=True)


def rolled_in_place_repaired(x: jax.Array) -> jax.Array:
    return _moved(_copy, x, lambda i: ((i + 3) % 4, 0), in_place=False)


def reversed_in_place(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The second half of the grid reads what the first half has written; block 2 is fetched
        # while it is written back.
        out_ref[...] = x_ref[...]  # FAULT

    return _moved(copy, x, lambda i: (3 - i, 0), in_place=True)


def reversed_in_place_repaired(x: jax.Array) -> jax.Array:
    return _moved(_copy, x, lambda i: (3 - i, 0), in_place=False)


def _copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
    out_ref[...] = x_ref[...]


def _moved(kernel: object, x: jax.Array, to: Any, *, in_place: bool) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((8, 128), to),
        input_output_aliases={0: 0} if in_place else {},
    )(x)


def product_replaced_at_each_step(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # All terms of the sum but the last are computed for nothing.
        out_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)  # FAULT

    return _matmul(matmul, x, y)


def product_replaced_at_each_step_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def matmul(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    return _matmul(matmul, x, y)


def _matmul(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
    )(x, y)


def duplicate_in_a_scatter(blocks: jax.Array, x: jax.Array) -> jax.Array:
    def scatter_add(blocks_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Two entries of the table name block 1: the second replaces what the first one wrote.
        out_ref[...] = x_ref[...]  # FAULT

    return _scatter(scatter_add, blocks, x)


def duplicate_in_a_scatter_repaired(blocks: jax.Array, x: jax.Array) -> jax.Array:
    def scatter_add(blocks_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when((i == 0) | (blocks_ref[jnp.maximum(i - 1, 0)] != blocks_ref[i]))
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    return _scatter(scatter_add, blocks, x)


def _scatter(kernel: object, blocks: jax.Array, x: jax.Array) -> jax.Array:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, blocks: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, blocks: (blocks[i], 0)),
    )
    out = jax.ShapeDtypeStruct((16, 128), F32)
    return pl.pallas_call(kernel, out_shape=out, grid_spec=spec)(blocks, x)


def halves_written_in_two_visits(x: jax.Array) -> jax.Array:
    def stack(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        half = pl.program_id(0)
        out_ref[pl.ds(half * 8, 8), :] = x_ref[...]

    return pl.pallas_call(
        stack,
        out_shape=x,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda half, i: (2 * i + half, 0))],
        # Blocks 0, 1, 0, 1: the upper half has left VMEM when the lower one is written, and is not
        # read back.
        out_specs=pl.BlockSpec((16, 128), lambda half, i: (i, 0)),  # FAULT
    )(x)


def halves_written_in_two_visits_repaired(x: jax.Array) -> jax.Array:
    def stack(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        half = pl.program_id(1)
        out_ref[pl.ds(half * 8, 8), :] = x_ref[...]

    return pl.pallas_call(
        stack,
        out_shape=x,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, half: (2 * i + half, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda i, half: (i, 0)),
    )(x)


def frames_overlap(x: jax.Array) -> jax.Array:
    def overlap_add(x_ref: jax.Ref, out_ref: jax.Ref, tail_ref: jax.Ref) -> None:
        # Frames of 16 rows, 8 apart: what two of them share is to be added up, and not replaced.
        pltpu.sync_copy(x_ref, out_ref.at[pl.ds(pl.program_id(0) * 8, 16)])  # FAULT

    return _overlap_add(overlap_add, x)


def frames_overlap_repaired(x: jax.Array) -> jax.Array:
    def overlap_add(x_ref: jax.Ref, out_ref: jax.Ref, tail_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            tail_ref[...] = jnp.zeros_like(tail_ref)

        tail_ref[...] += x_ref[0:8, :]
        pltpu.sync_copy(tail_ref, out_ref.at[pl.ds(i * 8, 8)])
        tail_ref[...] = x_ref[8:16, :]

        @pl.when(i == pl.num_programs(0) - 1)
        def _finish() -> None:
            pltpu.sync_copy(tail_ref, out_ref.at[pl.ds(i * 8 + 8, 8)])

    return _overlap_add(overlap_add, x)


def _overlap_add(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        grid=(2,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
        out_specs=HBM,
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


def rows_past_the_length_not_written(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def clip(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(r: jax.Array, _: None) -> None:
            # Rows past the length keep what was there. As integers they look like any others.
            out_ref[pl.ds(r, 1), :] = jnp.maximum(x_ref[pl.ds(r, 1), :], 0)  # FAULT

        lax.fori_loop(0, lengths_ref[pl.program_id(0)], row, None)

    return _clip(clip, lengths, x)


def rows_past_the_length_not_written_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def clip(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(I32, out_ref.shape, 0)
        is_valid = row < lengths_ref[pl.program_id(0)]
        out_ref[...] = jnp.where(is_valid, jnp.maximum(x_ref[...], 0), 0)

    return _clip(clip, lengths, x)


def _clip(kernel: object, lengths: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[SMEM, ROWS], out_specs=ROWS)(
        lengths, x
    )


def clipped(lengths: jax.Array, x: jax.Array) -> jax.Array:
    is_valid = (jnp.arange(8) < lengths[:, None]).reshape(-1, 1)
    return jnp.where(is_valid, jnp.maximum(x, 0), 0)


def one_row_of_padding(x: jax.Array) -> jax.Array:
    n = x.shape[0]

    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        # Row n is the first one of the padding.
        row = i * 8 + lax.broadcasted_iota(I32, x_ref.shape, 0)
        out_ref[...] += jnp.where(row <= n, x_ref[...], 0).sum(axis=0, keepdims=True)  # FAULT

    return _sum_rows(sum_rows, x)


def one_row_of_padding_repaired(x: jax.Array) -> jax.Array:
    n = x.shape[0]

    def sum_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        row = i * 8 + lax.broadcasted_iota(I32, x_ref.shape, 0)
        out_ref[...] += jnp.where(row < n, x_ref[...], 0).sum(axis=0, keepdims=True)

    return _sum_rows(sum_rows, x)


def _sum_rows(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, 128), I32),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
    )(x)


def last_entry_past_the_rows(starts: jax.Array, x: jax.Array) -> jax.Array:
    def gather(starts_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        # Entry 2 of the table is 20, and there are 24 rows: 20 to 28 are not all there.
        start = pl.multiple_of(starts_ref[pl.program_id(0)], 4)
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(start, 8)], out_ref, sem)
        copy.start()  # FAULT
        copy.wait()

    return _gather(gather, starts, x)


def last_entry_past_the_rows_repaired(starts: jax.Array, x: jax.Array) -> jax.Array:
    def gather(starts_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        start = jnp.minimum(starts_ref[pl.program_id(0)], 16)
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(pl.multiple_of(start, 8), 8)], out_ref, sem)
        copy.start()
        copy.wait()

    return _gather(gather, starts, x)


def _gather(kernel: object, starts: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(3,),
        in_specs=[SMEM, HBM],
        out_specs=ROWS,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(starts, x)


def slot_refilled_before_it_is_read(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sem: jax.Ref) -> None:
        i = pl.program_id(0)

        def slot(step: jax.Array) -> jax.Array:
            # 0, 0, 1: block 1 is fetched into the slot from which block 0 is about to be read.
            return lax.rem(lax.div(step, 2), 2)

        def copy(step: jax.Array) -> Any:
            rows = x_ref.at[pl.ds(step * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[slot(step)], sem.at[slot(step)])

        @pl.when(i == 0)
        def _first() -> None:
            copy(i).start()

        copy(i).wait()

        @pl.when(i + 1 < pl.num_programs(0))
        def _next() -> None:
            copy(i + 1).start()  # FAULT

        out_ref[...] = tiles_ref[slot(i)] * 2

    return _double(double, x)


def slot_refilled_before_it_is_read_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sem: jax.Ref) -> None:
        i = pl.program_id(0)

        def slot(step: jax.Array) -> jax.Array:
            return lax.rem(step, 2)

        def copy(step: jax.Array) -> Any:
            rows = x_ref.at[pl.ds(step * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[slot(step)], sem.at[slot(step)])

        @pl.when(i == 0)
        def _first() -> None:
            copy(i).start()

        copy(i).wait()

        @pl.when(i + 1 < pl.num_programs(0))
        def _next() -> None:
            copy(i + 1).start()

        out_ref[...] = tiles_ref[slot(i)] * 2

    return _double(double, x)


def _double(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(3,),
        in_specs=[HBM],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def overlap_added(x: jax.Array) -> jax.Array:
    zeros = jnp.zeros((8, 128), x.dtype)
    return jnp.concatenate([x[:16], zeros]) + jnp.concatenate([zeros, x[16:]])


LENGTHS = jax.ShapeDtypeStruct((2,), I32)
THREE = jax.ShapeDtypeStruct((24, 128), F32)

KERNELS = (
    BrokenKernel(
        fault="OverwrittenRead",
        summary="Blocks move up in place, and the last one was overwritten by the first.",
        function=rolled_in_place,
        repaired=rolled_in_place_repaired,
        reference=lambda x: jnp.roll(x, -8, axis=0),
        args=(jax.ShapeDtypeStruct((32, 128), I32),),
        machine=MachineFinding(
            operand="x_ref", grid_point=(3,), values={"other grid point": "(0,)"}
        ),
    ),
    BrokenKernel(
        fault="OverwrittenRead",
        summary="Blocks are reversed in place, and those of the second half are read too late.",
        function=reversed_in_place,
        repaired=reversed_in_place_repaired,
        reference=lambda x: x.reshape(4, 8, 128)[::-1].reshape(32, 128),
        args=(jax.ShapeDtypeStruct((32, 128), F32),),
        machine=MachineFinding(
            operand="x_ref", grid_point=(2,), values={"other grid point": "(1,)"}
        ),
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="Each step of a matrix product replaces the sum instead of adding to it.",
        function=product_replaced_at_each_step,
        repaired=product_replaced_at_each_step_repaired,
        reference=lambda x, y: jnp.dot(x, y),
        args=(jax.ShapeDtypeStruct((16, 256), F32), jax.ShapeDtypeStruct((256, 128), F32)),
        hint="unread write",
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="A scatter replaces a block that its table names twice.",
        function=duplicate_in_a_scatter,
        repaired=duplicate_in_a_scatter_repaired,
        reference=lambda blocks, x: (
            jnp.zeros((2, 8, 128), F32).at[blocks].add(x.reshape(3, 8, 128)).reshape(16, 128)
        ),
        args=(jax.ShapeDtypeStruct((3,), I32), THREE),
        values={0: (0, 1, 1)},
        hint="unread write",
    ),
    BrokenKernel(
        fault="OutputRevisited",
        summary="The halves of an output block are written in two visits, far apart.",
        function=halves_written_in_two_visits,
        repaired=halves_written_in_two_visits_repaired,
        reference=lambda x: x,
        args=(jax.ShapeDtypeStruct((32, 128), F32),),
        machine=MachineFinding(operand="out_ref", grid_point=(1, 0)),
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="Overlapping frames are copied one over the other.",
        function=frames_overlap,
        repaired=frames_overlap_repaired,
        reference=overlap_added,
        args=(jax.ShapeDtypeStruct((32, 128), F32),),
        hint="several writers",
    ),
    BrokenKernel(
        fault="OutputNotWritten",
        summary="Rows of an integer output past the length of a sequence are never written.",
        function=rows_past_the_length_not_written,
        repaired=rows_past_the_length_not_written_repaired,
        reference=clipped,
        args=(LENGTHS, jax.ShapeDtypeStruct((16, 128), I32)),
        values={0: (8, 5)},
        machine=MachineFinding(operand="out_ref", grid_point=(1,)),
    ),
    BrokenKernel(
        fault="PaddingRead",
        summary="A mask lets one row of padding into a sum of integers.",
        function=one_row_of_padding,
        repaired=one_row_of_padding_repaired,
        reference=lambda x: x.sum(axis=0, keepdims=True),
        args=(jax.ShapeDtypeStruct((20, 128), I32),),
        machine=MachineFinding(operand="x_ref", grid_point=(2,)),
    ),
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="The last entry of a table of rows is too close to the end.",
        function=last_entry_past_the_rows,
        repaired=last_entry_past_the_rows_repaired,
        reference=lambda starts, x: jnp.concatenate([x[0:8], x[8:16], x[16:24]]),
        args=(jax.ShapeDtypeStruct((3,), I32), THREE),
        values={0: (0, 8, 20)},
        machine=MachineFinding(operand="x_ref", grid_point=(2,)),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The next block is fetched into the slot that is about to be read.",
        function=slot_refilled_before_it_is_read,
        repaired=slot_refilled_before_it_is_read_repaired,
        reference=lambda x: x * 2,
        args=(THREE,),
        machine=MachineFinding(operand="tiles_ref", grid_point=(0,)),
    ),
)
