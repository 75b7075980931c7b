"""Outputs and aliased operands: overwritten too early, lost, written twice or in part."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

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
    ),
    BrokenKernel(
        fault="OverwrittenRead",
        summary="Blocks are reversed in place, and those of the second half are read too late.",
        function=reversed_in_place,
        repaired=reversed_in_place_repaired,
        reference=lambda x: x.reshape(4, 8, 128)[::-1].reshape(32, 128),
        args=(jax.ShapeDtypeStruct((32, 128), F32),),
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
    ),
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="The last entry of a table of rows is too close to the end.",
        function=last_entry_past_the_rows,
        repaired=last_entry_past_the_rows_repaired,
        reference=lambda starts, x: jnp.concatenate([x[0:8], x[8:16], x[16:24]]),
        args=(jax.ShapeDtypeStruct((3,), I32), THREE),
        values={0: (0, 8, 20)},
    ),
)
