"""Copies, semaphores and parallel grid points whose order the kernel machine judges."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
X = jax.ShapeDtypeStruct((8, 128), F32)


@fault(
    "DataRace",
    "Two copies share a semaphore, and the first is read after a wait for one of them.",
    lambda x, y: x - y,
    X,
    X,
)
@called(in_specs=[HBM, HBM], scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), DMA((2,))])
def one_semaphore_for_two_copies(x_ref, y_ref, out_ref, tiles_ref, sems, repaired=False):
    copy_x = pltpu.make_async_copy(x_ref, tiles_ref.at[0], sems.at[0])
    copy_y = pltpu.make_async_copy(y_ref, tiles_ref.at[1], sems.at[1 if repaired else 0])
    copy_x.start()
    copy_y.start()
    copy_x.wait()
    # The bytes that were waited for may be those of y.
    out_ref[...] = tiles_ref[0]  # FAULT
    copy_y.wait()
    out_ref[...] -= tiles_ref[1]


@fault(
    "DataRace", "Two copies into one buffer are under way at once.", lambda x, y: y, X, X
)  # fmt: skip
@called(in_specs=[HBM, HBM], scratch_shapes=[TILE, DMA((2,))])
def two_copies_into_one_buffer(x_ref, y_ref, out_ref, tile_ref, sems, repaired=False):
    copy_x = pltpu.make_async_copy(x_ref, tile_ref, sems.at[0])
    copy_y = pltpu.make_async_copy(y_ref, tile_ref, sems.at[1])
    copy_x.start()
    if repaired:
        copy_x.wait()
    # The tile ends up with whichever comes last.
    copy_y.start()  # FAULT
    if not repaired:
        copy_x.wait()
    copy_y.wait()
    out_ref[...] = tile_ref[...]


@fault(
    "NondeterministicResult",
    "A semaphore is read while a copy may or may not be over.",
    lambda x: x * 2,
    X,
    # jax has no `semaphore_read` in TPU interpret mode; with ours the result depends on timing.
)
@called(in_specs=[HBM], scratch_shapes=[TILE, DMA])
def scaled_by_arrival(x_ref, out_ref, tile_ref, sem, repaired=False):
    copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
    copy.start()
    has_arrived = True
    if not repaired:
        # Whether the copy is over by now is a matter of luck.
        has_arrived = pl.semaphore_read(sem) > 0  # FAULT
    copy.wait()
    out_ref[...] = tile_ref[...] * jnp.where(has_arrived, 2.0, 3.0)


@fault(
    "WaitSizeMismatch",
    "A copy of 16 rows is waited for with a descriptor of 8.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((16, 128), F32),
)
@called(in_specs=[HBM], scratch_shapes=[pltpu.VMEM((16, 128), F32), DMA])
def half_the_rows_awaited(x_ref, out_ref, tile_ref, sem, repaired=False):
    pltpu.make_async_copy(x_ref, tile_ref, sem).start()
    rows = pl.ds(0, 16 if repaired else 8)
    # The wait is for 8 rows, and 16 were sent for.
    pltpu.make_async_copy(x_ref.at[rows], tile_ref.at[rows], sem).wait()  # FAULT
    out_ref[...] = tile_ref[...] * 2


@fault(
    "Deadlock",
    "A copy is waited for before it is started, and the other one afterwards.",
    lambda x, y: y,
    X,
    X,
)
@called(in_specs=[HBM, HBM], scratch_shapes=[TILE, DMA((2,))])
def waits_swapped(x_ref, y_ref, out_ref, tile_ref, sems, repaired=False):
    copy_x = pltpu.make_async_copy(x_ref, tile_ref, sems.at[0])
    copy_y = pltpu.make_async_copy(y_ref, tile_ref, sems.at[1])
    first, last = (copy_x, copy_y) if repaired else (copy_y, copy_x)
    copy_x.start()
    # The copy of y is started only once that of x is over.
    first.wait()  # FAULT
    copy_y.start()
    last.wait()
    out_ref[...] = tile_ref[...]
