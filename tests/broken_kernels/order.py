"""Copies, semaphores and parallel grid points whose order the kernel machine judges."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
TILES = pltpu.VMEM((2, 8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
TWO_DMAS = pltpu.SemaphoreType.DMA((2,))


def one_semaphore_for_two_copies(x: jax.Array, y: jax.Array) -> jax.Array:
    def subtract(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sem: jax.Ref
    ) -> None:
        copy_x = pltpu.make_async_copy(x_ref, tiles_ref.at[0], sem)
        copy_y = pltpu.make_async_copy(y_ref, tiles_ref.at[1], sem)
        copy_x.start()
        copy_y.start()
        copy_x.wait()
        # The bytes that were waited for may be those of y.
        out_ref[...] = tiles_ref[0]  # FAULT
        copy_y.wait()
        out_ref[...] -= tiles_ref[1]

    return _subtract(subtract, x, y, DMA)


def one_semaphore_for_two_copies_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def subtract(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref
    ) -> None:
        copy_x = pltpu.make_async_copy(x_ref, tiles_ref.at[0], sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, tiles_ref.at[1], sems.at[1])
        copy_x.start()
        copy_y.start()
        copy_x.wait()
        out_ref[...] = tiles_ref[0]
        copy_y.wait()
        out_ref[...] -= tiles_ref[1]

    return _subtract(subtract, x, y, TWO_DMAS)


def _subtract(kernel: object, x: jax.Array, y: jax.Array, semaphores: object) -> jax.Array:
    return pl.pallas_call(
        kernel, out_shape=x, in_specs=[HBM, HBM], scratch_shapes=[TILES, semaphores]
    )(x, y)


def two_copies_into_one_buffer(x: jax.Array, y: jax.Array) -> jax.Array:
    def replace(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sems: jax.Ref
    ) -> None:
        copy_x = pltpu.make_async_copy(x_ref, tile_ref, sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, tile_ref, sems.at[1])
        copy_x.start()
        # The tile ends up with whichever comes last.
        copy_y.start()  # FAULT
        copy_x.wait()
        copy_y.wait()
        out_ref[...] = tile_ref[...]

    return _replace(replace, x, y)


def two_copies_into_one_buffer_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def replace(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sems: jax.Ref
    ) -> None:
        copy_x = pltpu.make_async_copy(x_ref, tile_ref, sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, tile_ref, sems.at[1])
        copy_x.start()
        copy_x.wait()
        copy_y.start()
        copy_y.wait()
        out_ref[...] = tile_ref[...]

    return _replace(replace, x, y)


def _replace(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel, out_shape=x, in_specs=[HBM, HBM], scratch_shapes=[TILE, TWO_DMAS]
    )(x, y)


def scaled_by_arrival(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        # Whether the copy is over by now is a matter of luck.
        has_arrived = pl.semaphore_read(sem) > 0  # FAULT
        copy.wait()
        out_ref[...] = tile_ref[...] * jnp.where(has_arrived, 2.0, 3.0)

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


def scaled_by_arrival_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        copy.wait()
        out_ref[...] = tile_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


def half_the_rows_awaited(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        pltpu.make_async_copy(x_ref, tile_ref, sem).start()
        half = pl.ds(0, 8)
        # The wait is for 8 rows, and 16 were sent for.
        pltpu.make_async_copy(x_ref.at[half], tile_ref.at[half], sem).wait()  # FAULT
        out_ref[...] = tile_ref[...] * 2

    return _double_all(double, x)


def half_the_rows_awaited_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        pltpu.make_async_copy(x_ref, tile_ref, sem).start()
        pltpu.make_async_copy(x_ref, tile_ref, sem).wait()
        out_ref[...] = tile_ref[...] * 2

    return _double_all(double, x)


def _double_all(kernel: object, x: jax.Array) -> jax.Array:
    tile = pltpu.VMEM((16, 128), F32)
    return pl.pallas_call(kernel, out_shape=x, in_specs=[HBM], scratch_shapes=[tile, DMA])(x)


def waits_swapped(x: jax.Array, y: jax.Array) -> jax.Array:
    def replace(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sems: jax.Ref
    ) -> None:
        copy_x = pltpu.make_async_copy(x_ref, tile_ref, sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, tile_ref, sems.at[1])
        copy_x.start()
        # The copy of y is started only once that of x is over.
        copy_y.wait()  # FAULT
        copy_y.start()
        copy_x.wait()
        out_ref[...] = tile_ref[...]

    return _replace(replace, x, y)


waits_swapped_repaired = two_copies_into_one_buffer_repaired


X = (jax.ShapeDtypeStruct((8, 128), F32),)
TWO_BLOCKS = (jax.ShapeDtypeStruct((16, 128), F32),)
KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="Two copies share a semaphore, and the first is read after a wait for one of them.",
        function=one_semaphore_for_two_copies,
        repaired=one_semaphore_for_two_copies_repaired,
        reference=lambda x, y: x - y,
        args=X * 2,
    ),
    BrokenKernel(
        fault="DataRace",
        summary="Two copies into one buffer are under way at once.",
        function=two_copies_into_one_buffer,
        repaired=two_copies_into_one_buffer_repaired,
        reference=lambda x, y: y,
        args=X * 2,
    ),
    BrokenKernel(
        fault="NondeterministicResult",
        summary="A semaphore is read while a copy may or may not be over.",
        function=scaled_by_arrival,
        repaired=scaled_by_arrival_repaired,
        reference=lambda x: x * 2,
        args=X,
        # jax has no `semaphore_read` in TPU interpret mode; with ours the result depends on timing.
    ),
    BrokenKernel(
        fault="WaitSizeMismatch",
        summary="A copy of 16 rows is waited for with a descriptor of 8.",
        function=half_the_rows_awaited,
        repaired=half_the_rows_awaited_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="A copy is waited for before it is started, and the other one afterwards.",
        function=waits_swapped,
        repaired=waits_swapped_repaired,
        reference=lambda x, y: y,
        args=X * 2,
    ),
)
