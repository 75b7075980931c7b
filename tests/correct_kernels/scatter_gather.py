"""Rows that are scattered and gathered, also with duplicates."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal, table

F32, I32 = jnp.float32, jnp.int32
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)
VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
ANY = pl.BlockSpec(memory_space=pl.ANY)


def _scattered(index, rows):
    out = np.zeros((8, 128), np.float32)
    for i, row in zip(index, rows, strict=True):
        out[i] = row
    return out


@equals(_scattered, table(3, 1, 3, 6, 1, 0), normal(6, 128))
@called(jax.ShapeDtypeStruct((8, 128), F32), in_specs=[SMEM, VMEM])
def scatter_of_which_the_last_write_wins(index_ref, rows_ref, out_ref):
    out_ref[...] = jnp.zeros_like(out_ref)

    def put(i, _):
        out_ref[pl.ds(index_ref[i], 1), :] = rows_ref[pl.ds(i, 1), :]

    lax.fori_loop(0, 6, put, None)


@equals(lambda i, r, t: _onto(t, i, r), table(3, 1, 3, 1), normal(4, 8, 128), normal(5, 8, 128))
@called(
    in_specs=[SMEM, ANY, ANY],
    out_specs=ANY,
    scratch_shapes=[pltpu.SemaphoreType.DMA],
    input_output_aliases={2: 0},
)
def scatter_of_copies(index_ref, rows_ref, _, out_ref, sem):
    """Copies to a table in HBM, one after the other: of two to one place the later wins."""
    for i in range(4):
        copy = pltpu.make_async_copy(rows_ref.at[i], out_ref.at[index_ref[i]], sem)
        copy.start()
        copy.wait()


def _onto(target, index, rows):
    target = target.copy()
    for i, row in zip(index, rows, strict=True):
        target[i] = row
    return target


@equals(lambda index, x: x[index[:, 0]], integers(0, 16, 8, 1), normal(16, 128))
@called(jax.ShapeDtypeStruct((8, 128), F32))
def gather_by_one_hot_product(index_ref, x_ref, out_ref):
    column = lax.broadcasted_iota(I32, (8, 16), 1)
    one_hot = (column == index_ref[...]).astype(F32)
    out_ref[...] = jnp.dot(one_hot, x_ref[...], precision="highest")


def _compacted(x):
    kept = x[x > 0]
    return np.concatenate([kept, np.zeros(len(x) - len(kept), x.dtype)])


@equals(_compacted, integers(-9, 9, 40))
@called(block=SMEM)
def compact_positive_numbers(x_ref, out_ref):
    """A slot is overwritten until a number stays in it."""

    def clear(i, _):
        out_ref[i] = 0

    def keep(i, count):
        out_ref[count] = x_ref[i]
        return count + (x_ref[i] > 0).astype(I32)

    lax.fori_loop(0, 40, clear, None)
    count = lax.fori_loop(0, 40, keep, 0)

    @pl.when(count < 40)
    def _():
        out_ref[count] = 0


@equals(
    lambda i, r: _onto(np.zeros((4, 8, 128), np.float32), i, r),
    table(3, 1, 0, 2, 1, 3),
    normal(6, 8, 128),
)
@called(
    jax.ShapeDtypeStruct((4, 8, 128), F32),
    prefetch=1,
    grid=(6,),
    in_specs=[pl.BlockSpec((1, 8, 128), lambda i, index: (i, 0, 0))],
    out_specs=pl.BlockSpec((1, 8, 128), lambda i, index: (index[i], 0, 0)),
)
def scatter_by_an_index_map(_, rows_ref, out_ref):
    """Whole blocks of the output, some of them twice."""
    out_ref[...] = rows_ref[...]
