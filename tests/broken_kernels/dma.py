"""DMAs started by the kernel, and waited for too late, too often or never."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import (
    BrokenKernel,
    MachineFinding,
)

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA


def waits_for_the_other_copy(x: jax.Array, y: jax.Array) -> jax.Array:
    def add(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, x_tile: jax.Ref, y_tile: jax.Ref,
        sems: jax.Ref,
    ) -> None:  # fmt: skip
        copy_x = pltpu.make_async_copy(x_ref, x_tile, sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, y_tile, sems.at[1])
        copy_x.start()
        copy_y.start()
        copy_x.wait()
        # Of the two copies only that of x is known to be over.
        out_ref[...] = x_tile[...] + y_tile[...]  # FAULT
        copy_y.wait()

    return _add(add, x, y)


def waits_for_the_other_copy_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def add(
        x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref, x_tile: jax.Ref, y_tile: jax.Ref,
        sems: jax.Ref,
    ) -> None:  # fmt: skip
        copy_x = pltpu.make_async_copy(x_ref, x_tile, sems.at[0])
        copy_y = pltpu.make_async_copy(y_ref, y_tile, sems.at[1])
        copy_x.start()
        copy_y.start()
        copy_x.wait()
        copy_y.wait()
        out_ref[...] = x_tile[...] + y_tile[...]

    return _add(add, x, y)


def _add(kernel: object, x: jax.Array, y: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        in_specs=[HBM, HBM],
        scratch_shapes=[TILE, TILE, pltpu.SemaphoreType.DMA((2,))],
    )(x, y)


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


def copy_past_the_end(x: jax.Array) -> jax.Array:
    def rotate_rows(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        start = (pl.program_id(0) + 1) * 8
        # At the last grid point the rows are 16 to 24, of 16.
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(start, 8)], out_ref, sem)
        copy.start()  # FAULT
        copy.wait()

    return _copy_rows(rotate_rows, x)


def copy_past_the_end_repaired(x: jax.Array) -> jax.Array:
    def rotate_rows(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        start = (1 - pl.program_id(0)) * 8
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(start, 8)], out_ref, sem)
        copy.start()
        copy.wait()

    return _copy_rows(rotate_rows, x)


def current_block_prefetched(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def fetch(block: Any, slot: Any) -> Any:
            rows = x_ref.at[pl.ds(block * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[slot], sems.at[slot])

        fetch(0, 0).start()
        for i in range(2):
            if i < 1:
                # The next block is i + 1.
                fetch(i, i + 1).start()
            fetch(i, i).wait()  # FAULT
            out_ref[pl.ds(i * 8, 8)] = tiles_ref[i] * 2

    return _double_tiles(double, x)


def current_block_prefetched_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def fetch(block: Any, slot: Any) -> Any:
            rows = x_ref.at[pl.ds(block * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[slot], sems.at[slot])

        fetch(0, 0).start()
        for i in range(2):
            if i < 1:
                fetch(i + 1, i + 1).start()
            fetch(i, i).wait()
            out_ref[pl.ds(i * 8, 8)] = tiles_ref[i] * 2

    return _double_tiles(double, x)


def _double_tiles(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def _copy_rows(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2,),
        in_specs=[HBM],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        scratch_shapes=[DMA],
    )(x)


X = (jax.ShapeDtypeStruct((8, 128), F32),)
TWO_TILES = (jax.ShapeDtypeStruct((16, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="Of two copies under way only the other one was waited for.",
        function=waits_for_the_other_copy,
        repaired=waits_for_the_other_copy_repaired,
        reference=lambda x, y: x + y,
        args=X * 2,
        machine=MachineFinding(
            operand="y_tile",
            grid_point=(),
            other="copy_y.start()",
        ),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The next block is fetched into the buffer that the current one is read from.",
        function=single_buffer_prefetch,
        repaired=single_buffer_prefetch_repaired,
        reference=lambda x: x * 2,
        args=TWO_TILES,
        machine=MachineFinding(operand="tile_ref", grid_point=(), other="tile_ref[...] * 2"),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The source of a copy is overwritten while the copy is under way.",
        function=source_overwritten,
        repaired=source_overwritten_repaired,
        reference=lambda x: x + 1,
        args=X,
        machine=MachineFinding(operand="tile_ref", grid_point=(), other="copy.start()"),
    ),
    BrokenKernel(
        fault="DmaNotAwaited",
        summary="The copy to the output is never waited for.",
        function=copy_never_awaited,
        repaired=copy_never_awaited_repaired,
        reference=lambda x: x,
        args=X,
        machine=MachineFinding(operand="out_ref", grid_point=(), values={"semaphore": "sem"}),
    ),
    BrokenKernel(
        fault="DmaNotAwaited",
        summary="One block too many is prefetched, and its copy is never waited for.",
        function=prefetch_never_awaited,
        repaired=prefetch_never_awaited_repaired,
        reference=lambda x: x * 2,
        args=TWO_TILES,
        machine=MachineFinding(operand="tile_ref", grid_point=(), values={"semaphore": "sems[0]"}),
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="One copy is waited for twice.",
        function=waited_twice,
        repaired=waited_twice_repaired,
        reference=lambda x: x * 2,
        args=X,
        machine=MachineFinding(operand="sem", grid_point=()),
    ),
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="A copy starts after the last row.",
        function=copy_past_the_end,
        repaired=copy_past_the_end_repaired,
        reference=lambda x: jnp.roll(x, 8, axis=0),
        args=TWO_TILES,
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="The current block is prefetched again, in place of the next one.",
        function=current_block_prefetched,
        repaired=current_block_prefetched_repaired,
        reference=lambda x: x * 2,
        args=TWO_TILES,
    ),
)
