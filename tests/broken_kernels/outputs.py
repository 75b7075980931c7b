"""Outputs and aliased operands: overwritten too early, lost, written twice or in part."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
HBM = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)
ROWS_32 = jax.ShapeDtypeStruct((32, 128), F32)
ROWS_24 = jax.ShapeDtypeStruct((24, 128), F32)


def _moved(kernel, x, to, repaired=False):
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((8, 128), to),
        input_output_aliases={} if repaired else {0: 0},
    )(x)


@fault(
    "OverwrittenRead",
    "Blocks move up in place, and the last one was overwritten by the first.",
    lambda x: jnp.roll(x, -8, axis=0),
    jax.ShapeDtypeStruct((32, 128), I32),
)
def rolled_in_place(x, *, repaired=False):
    def copy(x_ref, out_ref):
        # Grid point 0 writes block 3, and grid point 3 reads it: too late for what x held.
        out_ref[...] = x_ref[...]  # FAULT

    return _moved(copy, x, lambda i: ((i + 3) % 4, 0), repaired)


@fault(
    "OverwrittenRead",
    "Blocks are reversed in place, and those of the second half are read too late.",
    lambda x: x.reshape(4, 8, 128)[::-1].reshape(32, 128),
    ROWS_32,
)
def reversed_in_place(x, *, repaired=False):
    def copy(x_ref, out_ref):
        # The second half of the grid reads what the first half has written; block 2 is fetched
        # while it is written back.
        out_ref[...] = x_ref[...]  # FAULT

    return _moved(copy, x, lambda i: (3 - i, 0), repaired)


@fault(
    "ValueMismatch",
    "A scatter replaces a block that its table names twice.",
    lambda blocks, x: (
        jnp.zeros((2, 8, 128), F32).at[blocks].add(x.reshape(3, 8, 128)).reshape(16, 128)
    ),
    jax.ShapeDtypeStruct((3,), I32),
    ROWS_24,
    values={0: (0, 1, 1)},
    hint="unread write",
)
@called(
    jax.ShapeDtypeStruct((16, 128), F32),
    prefetch=1,
    grid=(3,),
    in_specs=[ROWS],
    out_specs=pl.BlockSpec((8, 128), lambda i, blocks: (blocks[i], 0)),
)
def duplicate_in_a_scatter(blocks_ref, x_ref, out_ref, repaired=False):
    i = pl.program_id(0)
    if repaired:

        @pl.when((i == 0) | (blocks_ref[jnp.maximum(i - 1, 0)] != blocks_ref[i]))
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]
    else:
        # Two entries of the table name block 1: the second replaces what the first one wrote.
        out_ref[...] = x_ref[...]  # FAULT


def overlap_added(x):
    zeros = jnp.zeros((8, 128), x.dtype)
    return jnp.concatenate([x[:16], zeros]) + jnp.concatenate([zeros, x[16:]])


@fault(
    "ValueMismatch",
    "Overlapping frames are copied one over the other.",
    overlap_added,
    ROWS_32,
    hint="several writers",
)
@called(
    ROWS_24,
    grid=(2,),
    in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
    out_specs=HBM,
    scratch_shapes=[pltpu.VMEM((8, 128), F32)],
)
def frames_overlap(x_ref, out_ref, tail_ref, repaired=False):
    i = pl.program_id(0)
    if not repaired:
        # Frames of 16 rows, 8 apart: what two of them share is to be added up, and not replaced.
        pltpu.sync_copy(x_ref, out_ref.at[pl.ds(i * 8, 16)])  # FAULT
        return

    @pl.when(i == 0)
    def _start():
        tail_ref[...] = jnp.zeros_like(tail_ref)

    tail_ref[...] += x_ref[0:8, :]
    pltpu.sync_copy(tail_ref, out_ref.at[pl.ds(i * 8, 8)])
    tail_ref[...] = x_ref[8:16, :]

    @pl.when(i == pl.num_programs(0) - 1)
    def _finish():
        pltpu.sync_copy(tail_ref, out_ref.at[pl.ds(i * 8 + 8, 8)])


def clipped(lengths, x):
    is_valid = (jnp.arange(8) < lengths[:, None]).reshape(-1, 1)
    return jnp.where(is_valid, jnp.maximum(x, 0), 0)


@fault(
    "OutputNotWritten",
    "Rows of an integer output past the length of a sequence are never written.",
    clipped,
    jax.ShapeDtypeStruct((2,), I32),
    jax.ShapeDtypeStruct((16, 128), I32),
    values={0: (8, 5)},
)
@called(grid=(2,), in_specs=[SMEM, ROWS], out_specs=ROWS)
def rows_past_the_length_not_written(lengths_ref, x_ref, out_ref, repaired=False):
    def row(r, _):
        # Rows past the length keep what was there. As integers they look like any others.
        out_ref[pl.ds(r, 1), :] = jnp.maximum(x_ref[pl.ds(r, 1), :], 0)  # FAULT

    if repaired:
        out_ref[...] = jnp.zeros_like(out_ref)
    lax.fori_loop(0, lengths_ref[pl.program_id(0)], row, None)


@fault(
    "OutOfBoundsRead",
    "The last entry of a table of rows is too close to the end.",
    lambda starts, x: jnp.concatenate([x[0:8], x[8:16], x[16:24]]),
    jax.ShapeDtypeStruct((3,), I32),
    ROWS_24,
    values={0: (0, 8, 20)},
)
@called(
    grid=(3,),
    in_specs=[SMEM, HBM],
    out_specs=ROWS,
    scratch_shapes=[pltpu.SemaphoreType.DMA],
)
def last_entry_past_the_rows(starts_ref, x_ref, out_ref, sem, repaired=False):
    # Entry 2 of the table is 20, and there are 24 rows: 20 to 28 are not all there.
    start = starts_ref[pl.program_id(0)]
    start = pl.multiple_of(jnp.minimum(start, 16), 8) if repaired else pl.multiple_of(start, 4)
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(start, 8)], out_ref, sem)
    copy.start()  # FAULT
    copy.wait()
