"""DMAs started by the kernel, and waited for too late, too often or never."""
# mypy: disable-error-code="no-any-return,untyped-decorator"

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import BrokenKernel

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA


def read_before_wait(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        # The copy is still in flight.
        out_ref[...] = tile_ref[...] * 2  # FAULT
        copy.wait()

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


def read_before_wait_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        copy.wait()
        out_ref[...] = tile_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, in_specs=[HBM], scratch_shapes=[TILE, DMA])(x)


X = (jax.ShapeDtypeStruct((8, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="The target of a copy is read before the copy is awaited.",
        function=read_before_wait,
        repaired=read_before_wait_repaired,
        reference=lambda x: x * 2,
        args=X,
    ),
)
