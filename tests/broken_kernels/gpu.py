"""Kernels for GPUs: masks, shared memory, barriers."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32 = jnp.float32
S = jax.ShapeDtypeStruct


@fault(
    "UninitializedRead",
    "A masked load without `other` fills up a row of a softmax.",
    lambda x: jax.nn.softmax(x, axis=1),
    S((4, 100), F32),
    targets=("h100",),
)
@called(grid=(4,), compiler_params=plt.CompilerParams(num_warps=4))
def softmax_over_the_padding(x_ref: jax.Ref, out_ref: jax.Ref, repaired: bool = False) -> None:
    row, column = pl.program_id(0), jnp.arange(128)
    mask = column < 100
    # The elements that the mask leaves out are undefined, and count in maximum and sum.
    others = {"other": -jnp.inf} if repaired else {}
    x = plt.load(x_ref.at[row, column], mask=mask, **others)  # FAULT
    exp = jnp.exp(x - x.max())
    plt.store(out_ref.at[row, column], exp / exp.sum(), mask=mask)


@fault(
    "GpuBlockOverflow",
    "A tile takes more shared memory than a block has.",
    lambda x: x * 2,
    S((512, 128), F32),
    targets=("h100",),
    refused=(Refusal("lowering", "Mosaic GPU kernel exceeds available shared memory"),),
)
def tile_over_shared_memory(x: jax.Array, repaired: bool = False) -> jax.Array:
    size = 128 if repaired else 512

    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        rows = pl.ds(jax.lax.axis_index("i") * size, size)
        plgpu.copy_gmem_to_smem(x_ref.at[rows], tile_ref, barrier)
        plgpu.barrier_wait(barrier)
        out_ref[rows, :] = tile_ref[...] * 2

    # 256 KiB; a block has 227 KiB.
    tile = plgpu.SMEM((size, 128), F32)  # FAULT
    return plgpu.kernel(
        double,
        out_type=x,
        scratch_types=[tile, plgpu.Barrier()],
        grid=(512 // size,),
        grid_names=("i",),
    )(x)


@fault(
    "DataRace",
    "The target of a TMA copy is read before its barrier is awaited.",
    lambda x: x * 2,
    S((128, 128), F32),
    targets=("h100",),
)
def tma_copy_not_awaited(x: jax.Array, repaired: bool = False) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile_ref, barrier)
        if repaired:
            plgpu.barrier_wait(barrier)
        # The copy may still be in flight.
        out_ref[...] = tile_ref[...] * 2  # FAULT
        if not repaired:
            plgpu.barrier_wait(barrier)

    scratch = [plgpu.SMEM((128, 128), F32), plgpu.Barrier()]
    return plgpu.kernel(double, out_type=x, scratch_types=scratch)(x)
