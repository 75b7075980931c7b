"""Copies that are started and awaited by hand, and pipelines."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal

F32 = jnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
SLOTS = pltpu.VMEM((2, 8, 128), F32)
TWO_SEMAPHORES = pltpu.SemaphoreType.DMA((2,))


@equals(lambda x: x * 2, normal(32, 128))
@called(grid=(4,), in_specs=[ANY], out_specs=ROWS, scratch_shapes=[SLOTS, TWO_SEMAPHORES])
def prefetch_of_the_next_block(x_ref, out_ref, slots_ref, sems):
    """Each grid point starts the copy for the next one."""
    i = pl.program_id(0)

    def copy(i):
        slot = lax.rem(i, 2)
        rows = x_ref.at[pl.ds(i * 8, 8)]
        return pltpu.make_async_copy(rows, slots_ref.at[slot], sems.at[slot])

    @pl.when(i == 0)
    def _():
        copy(i).start()

    @pl.when(i + 1 < pl.num_programs(0))
    def _():
        copy(i + 1).start()

    copy(i).wait()
    out_ref[...] = slots_ref[lax.rem(i, 2)] * 2


@equals(lambda x: x + 1, normal(32, 128))
@called(grid=(4,), in_specs=[ROWS], out_specs=ANY, scratch_shapes=[SLOTS, TWO_SEMAPHORES])
def results_copied_back_while_the_next_is_computed(x_ref, out_ref, slots_ref, sems):
    i = pl.program_id(0)

    def store(i):
        slot = lax.rem(i, 2)
        rows = out_ref.at[pl.ds(i * 8, 8)]
        return pltpu.make_async_copy(slots_ref.at[slot], rows, sems.at[slot])

    @pl.when(i >= 2)
    def _():
        store(i - 2).wait()

    slots_ref[lax.rem(i, 2)] = x_ref[...] + 1
    store(i).start()

    @pl.when(i == pl.num_programs(0) - 1)
    def _():
        store(i - 1).wait()
        store(i).wait()


@equals(lambda x: x * x, normal(64, 128))
@called(
    in_specs=[ANY], scratch_shapes=[pltpu.VMEM((3, 8, 128), F32), pltpu.SemaphoreType.DMA((3,))]
)
def ring_of_three_slots(x_ref, out_ref, slots_ref, sems):
    """Two copies are under way while a block is computed."""

    def copy(i):
        slot = i % 3
        rows = x_ref.at[pl.ds(i * 8, 8)]
        return pltpu.make_async_copy(rows, slots_ref.at[slot], sems.at[slot])

    copy(0).start()
    copy(1).start()

    def step(i, _):
        copy(i).wait()

        @pl.when(i < 6)
        def _():
            copy(i + 2).start()

        block = slots_ref[i % 3]
        out_ref[pl.ds(pl.multiple_of(i * 8, 8), 8), :] = block * block

    lax.fori_loop(0, 8, step, None)


@equals(lambda x, y: jnp.dot(x, y, precision="highest"), normal(16, 256), normal(256, 256))
@called(
    jax.ShapeDtypeStruct((16, 256), F32),
    in_specs=[ANY, ANY],
    out_specs=ANY,
    scratch_shapes=[pltpu.VMEM((8, 128), F32)],
)
def product_by_emit_pipeline(x_ref, y_ref, out_ref, acc_ref):
    def multiply(x_ref, y_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], precision="highest")

        @pl.when(pl.program_id(2) == 1)
        def _():
            out_ref[...] = acc_ref[...]

    pltpu.emit_pipeline(
        multiply,
        grid=(2, 2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=[pl.BlockSpec((8, 128), lambda i, j, k: (i, j))],
    )(x_ref, y_ref, out_ref)


@equals(lambda x: (x[:-2] + x[1:-1] + x[2:])[:24], normal(32, 128))
@called(
    jax.ShapeDtypeStruct((24, 128), F32),
    grid=(3,),
    in_specs=[ANY],
    out_specs=ROWS,
    scratch_shapes=[pltpu.VMEM((16, 128), F32), pltpu.SemaphoreType.DMA],
)
def stencil_with_a_halo(x_ref, out_ref, rows_ref, sem):
    """Each block is fetched with the rows of the next one that it needs."""
    start = pl.multiple_of(pl.program_id(0) * 8, 8)
    pltpu.async_copy(x_ref.at[pl.ds(start, 16)], rows_ref, sem).wait()
    out_ref[...] = rows_ref[0:8, :] + rows_ref[1:9, :] + rows_ref[2:10, :]


@equals(lambda x: x - x.mean(0, keepdims=True), normal(16, 128))
@called(block=ANY)
def two_passes_with_scoped_scratch(x_ref, out_ref):
    def body(rows_ref, sem):
        pltpu.async_copy(x_ref, rows_ref, sem).wait()
        rows_ref[...] -= rows_ref[...].mean(0, keepdims=True)
        pltpu.async_copy(rows_ref, out_ref, sem).wait()

    pl.run_scoped(body, pltpu.VMEM((16, 128), F32), pltpu.SemaphoreType.DMA)


@equals(lambda x: x.reshape(4, 8, 128).sum(0), normal(32, 128))
@called(
    jax.ShapeDtypeStruct((8, 128), F32),
    in_specs=[ANY],
    scratch_shapes=[pltpu.VMEM((4, 8, 128), F32), pltpu.SemaphoreType.DMA],
)
def one_semaphore_for_all_copies(x_ref, out_ref, rows_ref, sem):
    """Four copies of one size are started, and awaited before any is used."""

    def copy(i):
        return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], rows_ref.at[i], sem)

    for i in range(4):
        copy(i).start()
    for i in range(4):
        copy(i).wait()
    out_ref[...] = rows_ref[...].sum(0)


@equals(lambda x: x[:8] + x[8:16], normal(32, 128))
@called(jax.ShapeDtypeStruct((8, 128), F32), in_specs=[ANY], scratch_shapes=[SLOTS, TWO_SEMAPHORES])
def prefetch_that_is_not_used(x_ref, out_ref, slots_ref, sems):
    """A pair of blocks more than needed is fetched, and awaited at the end."""

    def copy(i):
        rows = x_ref.at[pl.ds(i * 8, 8)]
        return pltpu.make_async_copy(rows, slots_ref.at[i % 2], sems.at[i % 2])

    copy(0).start()
    out_ref[...] = jnp.zeros_like(out_ref)
    for i in range(2):
        copy(i + 1).start()
        copy(i).wait()
        out_ref[...] += slots_ref[i % 2]
    copy(2).wait()
