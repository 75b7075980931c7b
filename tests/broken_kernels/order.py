"""Copies, semaphores and parallel grid points whose order the kernel machine judges."""

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

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
TILES = pltpu.VMEM((2, 8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
TWO_DMAS = pltpu.SemaphoreType.DMA((2,))


def halves_swapped_in_place(x: jax.Array) -> jax.Array:
    def swap(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        i = pl.program_id(0)
        # The array that the other grid point writes to: x and the output are one.
        fetch = pltpu.make_async_copy(x_ref.at[pl.ds((1 - i) * 8, 8)], tile_ref, sem)
        fetch.start()  # FAULT
        fetch.wait()
        store = pltpu.make_async_copy(tile_ref, out_ref.at[pl.ds(i * 8, 8)], sem)
        store.start()
        store.wait()

    return _swap(swap, x, in_place=True)


def halves_swapped_in_place_repaired(x: jax.Array) -> jax.Array:
    def swap(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        i = pl.program_id(0)
        fetch = pltpu.make_async_copy(x_ref.at[pl.ds((1 - i) * 8, 8)], tile_ref, sem)
        fetch.start()
        fetch.wait()
        store = pltpu.make_async_copy(tile_ref, out_ref.at[pl.ds(i * 8, 8)], sem)
        store.start()
        store.wait()

    return _swap(swap, x, in_place=False)


def _swap(kernel: object, x: jax.Array, *, in_place: bool) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(2,),
        in_specs=[HBM],
        out_specs=HBM,
        scratch_shapes=[TILE, DMA],
        input_output_aliases={0: 0} if in_place else {},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def slot_stored_before_its_copy_is_over(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = out_ref.at[pl.ds(i * 8, 8)]
            return pltpu.make_async_copy(tiles_ref.at[i % 2], rows, sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            # In iteration 2 the copy of iteration 0 still reads this slot.
            tiles_ref[i % 2] = x_ref[pl.ds(i * 8, 8)] * 2  # FAULT
            copy(i).start()

        lax.fori_loop(0, 3, step, None)
        for i in range(3):
            copy(i).wait()

    return _double_slots(double, x)


def slot_stored_before_its_copy_is_over_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = out_ref.at[pl.ds(i * 8, 8)]
            return pltpu.make_async_copy(tiles_ref.at[i % 2], rows, sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            @pl.when(i >= 2)
            def _free() -> None:
                copy(i - 2).wait()

            tiles_ref[i % 2] = x_ref[pl.ds(i * 8, 8)] * 2
            copy(i).start()

        lax.fori_loop(0, 3, step, None)
        for i in range(1, 3):
            copy(i).wait()

    return _double_slots(double, x)


def _double_slots(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(kernel, out_shape=x, out_specs=HBM, scratch_shapes=[TILES, TWO_DMAS])(x)


def other_slot_awaited(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = x_ref.at[pl.ds((i % 2) * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[i % 2], sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            @pl.when(i == 0)
            def _prefetch() -> None:
                copy(i + 1).start()

            copy(i + 1).wait()  # of the slot that is read next
            out_ref[pl.ds(i * 8, 8)] = tiles_ref[i % 2] * 2  # FAULT

        copy(0).start()
        lax.fori_loop(0, 2, step, None)

    return _double_fetched(double, x)


def other_slot_awaited_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = x_ref.at[pl.ds((i % 2) * 8, 8)]
            return pltpu.make_async_copy(rows, tiles_ref.at[i % 2], sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            @pl.when(i == 0)
            def _prefetch() -> None:
                copy(i + 1).start()

            copy(i).wait()
            out_ref[pl.ds(i * 8, 8)] = tiles_ref[i % 2] * 2

        copy(0).start()
        lax.fori_loop(0, 2, step, None)

    return _double_fetched(double, x)


def _double_fetched(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(kernel, out_shape=x, in_specs=[HBM], scratch_shapes=[TILES, TWO_DMAS])(x)


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


def last_copy_never_awaited(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = out_ref.at[pl.ds(i * 8, 8)]
            return pltpu.make_async_copy(tiles_ref.at[i % 2], rows, sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            tiles_ref[i % 2] = x_ref[pl.ds(i * 8, 8)] * 2
            # Each iteration waits for the one before it, and nothing for the last.
            copy(i).start()  # FAULT

            @pl.when(i > 0)
            def _free() -> None:
                copy(i - 1).wait()

        lax.fori_loop(0, 3, step, None)

    return _double_slots(double, x)


def last_copy_never_awaited_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = out_ref.at[pl.ds(i * 8, 8)]
            return pltpu.make_async_copy(tiles_ref.at[i % 2], rows, sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            tiles_ref[i % 2] = x_ref[pl.ds(i * 8, 8)] * 2
            copy(i).start()

            @pl.when(i > 0)
            def _free() -> None:
                copy(i - 1).wait()

        lax.fori_loop(0, 3, step, None)
        copy(2).wait()

    return _double_slots(double, x)


def drained_twice(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tiles_ref: jax.Ref, sems: jax.Ref) -> None:
        def copy(i: Any) -> Any:
            rows = out_ref.at[pl.ds(i * 8, 8)]
            return pltpu.make_async_copy(tiles_ref.at[i % 2], rows, sems.at[i % 2])

        def step(i: jax.Array, carry: None) -> None:
            tiles_ref[i % 2] = x_ref[pl.ds(i * 8, 8)] * 2
            copy(i).start()

            @pl.when(i > 0)
            def _free() -> None:
                copy(i - 1).wait()

        lax.fori_loop(0, 3, step, None)
        copy(2).wait()
        # The loop has waited for this one.
        copy(1).wait()  # FAULT

    return _double_slots(double, x)


drained_twice_repaired = last_copy_never_awaited_repaired


def awaited_on_one_branch(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        pl.semaphore_signal(sem, 1)

        @pl.when(pl.program_id(0) > 0)
        def _later() -> None:
            # The first grid point signals as well.
            pl.semaphore_wait(sem, 1)  # FAULT

        out_ref[...] = x_ref[...] * 2

    return _double_blocks(double, x)


def awaited_on_one_branch_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 1)
        out_ref[...] = x_ref[...] * 2

    return _double_blocks(double, x)


def _double_blocks(kernel: object, x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(3,),
        in_specs=[rows],
        out_specs=rows,
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x)


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
THREE_BLOCKS = (jax.ShapeDtypeStruct((24, 128), F32),)
NO_GRID = ()

KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="Parallel grid points swap two halves of one array in HBM in place.",
        function=halves_swapped_in_place,
        repaired=halves_swapped_in_place_repaired,
        reference=lambda x: jnp.roll(x, 8, axis=0),
        args=TWO_BLOCKS,
        machine=MachineFinding(operand="x_ref", grid_point=(1,), other="store.start()"),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="A slot is stored to while the copy of two iterations ago still reads it.",
        function=slot_stored_before_its_copy_is_over,
        repaired=slot_stored_before_its_copy_is_over_repaired,
        reference=lambda x: x * 2,
        args=THREE_BLOCKS,
        machine=MachineFinding(
            operand="tiles_ref", grid_point=NO_GRID, loop=(2,), other="copy(i).start()"
        ),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="A double-buffered loop waits for the slot that it reads next.",
        function=other_slot_awaited,
        repaired=other_slot_awaited_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
        machine=MachineFinding(
            operand="tiles_ref",
            grid_point=NO_GRID,
            loop=(0,),
            other="copy(0).start()",
            values={"other semaphore": "sems[0]"},
        ),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="Two copies share a semaphore, and the first is read after a wait for one of them.",
        function=one_semaphore_for_two_copies,
        repaired=one_semaphore_for_two_copies_repaired,
        reference=lambda x, y: x - y,
        args=X * 2,
        machine=MachineFinding(operand="tiles_ref", grid_point=NO_GRID, other="copy_x.start()"),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="Two copies into one buffer are under way at once.",
        function=two_copies_into_one_buffer,
        repaired=two_copies_into_one_buffer_repaired,
        reference=lambda x, y: y,
        args=X * 2,
        machine=MachineFinding(operand="tile_ref", grid_point=NO_GRID, other="copy_x.start()"),
    ),
    BrokenKernel(
        fault="NondeterministicResult",
        summary="A semaphore is read while a copy may or may not be over.",
        function=scaled_by_arrival,
        repaired=scaled_by_arrival_repaired,
        reference=lambda x: x * 2,
        args=X,
        # jax has no `semaphore_read` in TPU interpret mode; with ours the result depends on timing.
        machine=MachineFinding(operand="out_ref", grid_point=NO_GRID),
    ),
    BrokenKernel(
        fault="WaitSizeMismatch",
        summary="A copy of 16 rows is waited for with a descriptor of 8.",
        function=half_the_rows_awaited,
        repaired=half_the_rows_awaited_repaired,
        reference=lambda x: x * 2,
        args=TWO_BLOCKS,
        machine=MachineFinding(
            operand="sem",
            grid_point=NO_GRID,
            other="make_async_copy(x_ref, tile_ref, sem).start()",
            values={"copied bytes": "8192", "awaited bytes": "4096"},
        ),
    ),
    BrokenKernel(
        fault="DmaNotAwaited",
        summary="Each iteration waits for the copy of the one before, and nothing for the last.",
        function=last_copy_never_awaited,
        repaired=last_copy_never_awaited_repaired,
        reference=lambda x: x * 2,
        args=THREE_BLOCKS,
        machine=MachineFinding(
            operand="out_ref", grid_point=NO_GRID, loop=(2,), values={"semaphore": "sems[0]"}
        ),
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="After a loop that waits for all copies but the last, two are waited for.",
        function=drained_twice,
        repaired=drained_twice_repaired,
        reference=lambda x: x * 2,
        args=THREE_BLOCKS,
        machine=MachineFinding(operand="sems[1]", grid_point=NO_GRID),
    ),
    BrokenKernel(
        fault="SemaphoreLeftOver",
        summary="All grid points signal, and all but the first wait.",
        function=awaited_on_one_branch,
        repaired=awaited_on_one_branch_repaired,
        reference=lambda x: x * 2,
        args=THREE_BLOCKS,
        machine=MachineFinding(operand="sem", grid_point=None, other="pl.semaphore_signal(sem, 1)"),
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="A copy is waited for before it is started, and the other one afterwards.",
        function=waits_swapped,
        repaired=waits_swapped_repaired,
        reference=lambda x, y: y,
        args=X * 2,
        machine=MachineFinding(operand="sems[1]", grid_point=NO_GRID),
    ),
)
