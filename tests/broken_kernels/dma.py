"""DMAs started by the kernel, and waited for too late, too often or never."""

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
    "The next block is fetched into the buffer that the current one is read from.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((16, 128), F32),
)
@called(in_specs=[HBM], scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), DMA((2,))])
def single_buffer_prefetch(x_ref, out_ref, tiles_ref, sems, repaired=False):
    def slot(i):
        return i % 2 if repaired else 0

    def copy(i):
        tile, sem = tiles_ref.at[slot(i)], sems.at[slot(i)]
        return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], tile, sem)

    copy(0).start()
    for i in range(2):
        copy(i).wait()
        if i == 0:
            # The next block arrives in the buffer that is about to be read.
            copy(1).start()  # FAULT
        out_ref[i * 8 : (i + 1) * 8, :] = tiles_ref[slot(i)] * 2


@fault(
    "DataRace",
    "The source of a copy is overwritten while the copy is under way.",
    lambda x: x + 1,
    X,
)
@called(out_specs=HBM, scratch_shapes=[TILE, DMA])
def source_overwritten(x_ref, out_ref, tile_ref, sem, repaired=False):
    tile_ref[...] = x_ref[...] + 1
    copy = pltpu.make_async_copy(tile_ref, out_ref, sem)
    copy.start()
    if repaired:
        copy.wait()
    # The copy still reads what is overwritten here.
    tile_ref[...] = jnp.zeros_like(tile_ref)  # FAULT
    if not repaired:
        copy.wait()


@fault("DmaNotAwaited", "The copy to the output is never waited for.", lambda x: x, X)
@called(out_specs=HBM, scratch_shapes=[DMA])
def copy_never_awaited(x_ref, out_ref, sem, repaired=False):
    copy = pltpu.make_async_copy(x_ref, out_ref, sem)
    # The kernel may be over before its copy is, and the semaphore keeps the bytes.
    copy.start()  # FAULT
    if repaired:
        copy.wait()


@fault("Deadlock", "One copy is waited for twice.", lambda x: x * 2, X)
@called(in_specs=[HBM], scratch_shapes=[TILE, DMA])
def waited_twice(x_ref, out_ref, tile_ref, sem, repaired=False):
    copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
    copy.start()
    copy.wait()
    if not repaired:
        # The semaphore was taken back to zero, and nothing will raise it again.
        copy.wait()  # FAULT
    out_ref[...] = tile_ref[...] * 2
