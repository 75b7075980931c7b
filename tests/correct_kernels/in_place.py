"""Arrays that are updated in place, through `input_output_aliases`."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal, table

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
ANY = pl.BlockSpec(memory_space=pl.ANY)


def _scaled_rows(x):
    return np.concatenate([x[:8], x[8:16] * 2, x[16:]])


@equals(_scaled_rows, normal(32, 128))
@called(
    block=ANY,
    scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA],
    input_output_aliases={0: 0},
)
def scale_some_rows(x_ref, out_ref, rows_ref, sem):
    """Only rows 8 to 15 are touched; the others keep what the input holds."""
    pltpu.sync_copy(x_ref.at[pl.ds(8, 8)], rows_ref)
    rows_ref[...] *= 2
    copy = pltpu.make_async_copy(rows_ref, out_ref.at[pl.ds(8, 8)], sem)
    copy.start()
    copy.wait()


@equals(lambda x: _scaled_rows(x), normal(32, 128))
@called(grid=(1,), block=pl.BlockSpec((8, 128), lambda i: (i + 1, 0)), input_output_aliases={0: 0})
def scale_one_block(x_ref, out_ref):
    """The grid has only the block that changes."""

    out_ref[...] = x_ref[...] * 2


@equals(lambda x, p: x + p.reshape(16, 3, 128).sum(1), normal(16, 128), normal(16, 384))
@called(
    like=0,
    grid=(2, 3),
    in_specs=[
        pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        pl.BlockSpec((8, 128), lambda i, j: (i, j)),
    ],
    out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
    input_output_aliases={0: 0},
)
def add_parts_to_a_table(x_ref, part_ref, out_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        out_ref[...] = x_ref[...]

    out_ref[...] += part_ref[...]


def _cache_with_rows(slots, rows, cache):
    cache = cache.copy()
    cache[slots] = rows
    return cache


@equals(_cache_with_rows, table(5, 0, 11), normal(3, 8, 128), normal(16, 8, 128))
@called(
    prefetch=1,
    grid=(3,),
    in_specs=[pl.BlockSpec((1, 8, 128), lambda i, slots: (i, 0, 0)), ANY],
    out_specs=ANY,
    scratch_shapes=[pltpu.SemaphoreType.DMA],
    input_output_aliases={2: 0},
)
def write_rows_of_a_cache(slots_ref, row_ref, _, cache_ref, sem):
    """New keys of three sequences go to their slots of a cache in HBM."""
    slot = slots_ref[pl.program_id(0)]
    copy = pltpu.make_async_copy(row_ref, cache_ref.at[pl.ds(slot, 1)], sem)
    copy.start()
    copy.wait()


@equals(lambda x: np.concatenate([x[8:], x[:8]]), normal(16, 128))
@called(
    block=ANY,
    scratch_shapes=[*[pltpu.VMEM((8, 128), F32)] * 2, pltpu.SemaphoreType.DMA((2,))],
    input_output_aliases={0: 0},
)
def swap_halves(x_ref, out_ref, upper_ref, lower_ref, sems):
    """Both halves are read before either is written."""
    reads = [
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], upper_ref, sems.at[0]),
        pltpu.make_async_copy(x_ref.at[pl.ds(8, 8)], lower_ref, sems.at[1]),
    ]
    writes = [
        pltpu.make_async_copy(upper_ref, out_ref.at[pl.ds(8, 8)], sems.at[0]),
        pltpu.make_async_copy(lower_ref, out_ref.at[pl.ds(0, 8)], sems.at[1]),
    ]
    for copies in (reads, writes):
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()


@equals(
    lambda g, w, m: (w - np.float32(0.1) * (np.float32(0.9) * m + g), np.float32(0.9) * m + g),
    *(normal(16, 128) + i for i in range(3)),
)
@called(
    [jax.ShapeDtypeStruct((16, 128), F32)] * 2,
    grid=(2,),
    in_specs=[ROWS] * 3,
    out_specs=[ROWS] * 2,
    input_output_aliases={1: 0, 2: 1},
)
def step_with_momentum(gradient_ref, weight_ref, momentum_ref, new_weight_ref, new_momentum_ref):
    momentum = 0.9 * momentum_ref[...] + gradient_ref[...]
    new_momentum_ref[...] = momentum
    new_weight_ref[...] = weight_ref[...] - 0.1 * momentum


@equals(lambda x: np.sort(x), integers(0, 100, 24))
@called(block=pl.BlockSpec(memory_space=pltpu.SMEM), input_output_aliases={0: 0})
def insertion_sort(x_ref, out_ref):
    """The output, in SMEM, begins as a copy of the input."""

    def take(i, _):
        out_ref[i] = x_ref[i]

    def insert(i, _):
        key = out_ref[i]

        def is_larger(j):
            return (j > 0) & (out_ref[jnp.maximum(j - 1, 0)] > key)

        def shift(j):
            out_ref[j] = out_ref[j - 1]
            return j - 1

        out_ref[lax.while_loop(is_larger, shift, i)] = key

    lax.fori_loop(0, 24, take, None)
    lax.fori_loop(1, 24, insert, None)


@equals(lambda x: x * 2 + 1, normal(16, 128))
def two_kernels_on_one_array(x):
    """The second kernel updates what the first one made."""

    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    def increment(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1

    specs = {"grid": (2,), "in_specs": [ROWS], "out_specs": ROWS}
    doubled = pl.pallas_call(double, out_shape=x, **specs)(x)
    return pl.pallas_call(increment, out_shape=x, input_output_aliases={0: 0}, **specs)(doubled)
