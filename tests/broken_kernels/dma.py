"""DMAs started by the kernel, and waited for too late, too often or never."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA


def single_buffer_prefetch(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        def copy(i: int) -> Any:
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], tile_ref, sem)

        copy(0).start()
        for i in range(2):
            copy(i).wait()
            if i == 0:
                # The next block arrives in the buffer that is about to be read.
                copy(1).start()  # FAULT
            out_ref[i * 8 : (i + 1) * 8, :] = tile_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


def single_buffer_prefetch_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        def copy(i: int) -> Any:
            slot = i % 2
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], tile_ref.at[slot], sem.at[slot])

        copy(0).start()
        for i in range(2):
            copy(i).wait()
            if i == 0:
                copy(1).start()
            out_ref[i * 8 : (i + 1) * 8, :] = tile_ref[i % 2] * 2

    tiles = pltpu.VMEM((2, 8, 128), F32)
    return pl.pallas_call(
        double, out_shape=x, in_specs=[HBM], scratch_shapes=[tiles, pltpu.SemaphoreType.DMA((2,))]
    )(x)


def source_overwritten(x: jax.Array) -> jax.Array:
    def add_and_clear(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        tile_ref[...] = x_ref[...] + 1
        copy = pltpu.make_async_copy(tile_ref, out_ref, sem)
        copy.start()
        # The copy still reads what is overwritten here.
        tile_ref[...] = jnp.zeros_like(tile_ref)  # FAULT
        copy.wait()

    return pl.pallas_call(add_and_clear, out_shape=x, out_specs=HBM, scratch_shapes=[TILE, DMA])(x)


def source_overwritten_repaired(x: jax.Array) -> jax.Array:
    def add_and_clear(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        tile_ref[...] = x_ref[...] + 1
        copy = pltpu.make_async_copy(tile_ref, out_ref, sem)
        copy.start()
        copy.wait()
        tile_ref[...] = jnp.zeros_like(tile_ref)

    return pl.pallas_call(add_and_clear, out_shape=x, out_specs=HBM, scratch_shapes=[TILE, DMA])(x)


def copy_never_awaited(x: jax.Array) -> jax.Array:
    def copy_out(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        # The kernel may be over before its copy is, and the semaphore keeps the bytes.
        pltpu.make_async_copy(x_ref, out_ref, sem).start()  # FAULT

    return pl.pallas_call(copy_out, out_shape=x, out_specs=HBM, scratch_shapes=[DMA])(x)


def copy_never_awaited_repaired(x: jax.Array) -> jax.Array:
    def copy_out(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, out_ref, sem)
        copy.start()
        copy.wait()

    return pl.pallas_call(copy_out, out_shape=x, out_specs=HBM, scratch_shapes=[DMA])(x)


def prefetch_never_awaited(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: int) -> Any:
            slot, first_row = i % 2, (i % 2) * 8
            return pltpu.make_async_copy(
                x_ref.at[pl.ds(first_row, 8)], tile_ref.at[slot], sems.at[slot]
            )

        copy(0).start()
        for i in range(2):
            # After the last block there is none to fetch.
            copy(i + 1).start()  # FAULT
            copy(i).wait()
            out_ref[i * 8 : (i + 1) * 8, :] = tile_ref[i % 2] * 2

    return _double_two_tiles(double, x)


def prefetch_never_awaited_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: int) -> Any:
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], tile_ref.at[i], sems.at[i])

        copy(0).start()
        for i in range(2):
            if i + 1 < 2:
                copy(i + 1).start()
            copy(i).wait()
            out_ref[i * 8 : (i + 1) * 8, :] = tile_ref[i] * 2

    return _double_two_tiles(double, x)


def _double_two_tiles(kernel: object, x: jax.Array) -> jax.Array:
    tiles = pltpu.VMEM((2, 8, 128), F32)
    return pl.pallas_call(
        kernel, out_shape=x, in_specs=[HBM], scratch_shapes=[tiles, pltpu.SemaphoreType.DMA((2,))]
    )(x)


def waited_twice(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        copy.wait()
        # The semaphore was taken back to zero, and nothing will raise it again.
        copy.wait()  # FAULT
        out_ref[...] = tile_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


def waited_twice_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        copy.wait()
        out_ref[...] = tile_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


X = (jax.ShapeDtypeStruct((8, 128), F32),)
TWO_TILES = (jax.ShapeDtypeStruct((16, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="The next block is fetched into the buffer that the current one is read from.",
        function=single_buffer_prefetch,
        repaired=single_buffer_prefetch_repaired,
        reference=lambda x: x * 2,
        args=TWO_TILES,
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The source of a copy is overwritten while the copy is under way.",
        function=source_overwritten,
        repaired=source_overwritten_repaired,
        reference=lambda x: x + 1,
        args=X,
    ),
    BrokenKernel(
        fault="DmaNotAwaited",
        summary="The copy to the output is never waited for.",
        function=copy_never_awaited,
        repaired=copy_never_awaited_repaired,
        reference=lambda x: x,
        args=X,
    ),
    BrokenKernel(
        fault="DmaNotAwaited",
        summary="One block too many is prefetched, and its copy is never waited for.",
        function=prefetch_never_awaited,
        repaired=prefetch_never_awaited_repaired,
        reference=lambda x: x * 2,
        args=TWO_TILES,
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="One copy is waited for twice.",
        function=waited_twice,
        repaired=waited_twice_repaired,
        reference=lambda x: x * 2,
        args=X,
    ),
)
