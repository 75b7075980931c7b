"""Kernels for GPUs: masks, shared memory, barriers."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt
from pallas_debug_kernels.broken import BrokenKernel, Refusal

F32 = jnp.float32


def softmax_over_the_padding(x: jax.Array) -> jax.Array:
    def softmax(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row, column = pl.program_id(0), jnp.arange(128)
        mask = column < 100
        # The elements that the mask leaves out are undefined, and count in maximum and sum.
        x = plt.load(x_ref.at[row, column], mask=mask)  # FAULT
        exp = jnp.exp(x - x.max())
        plt.store(out_ref.at[row, column], exp / exp.sum(), mask=mask)

    params = plt.CompilerParams(num_warps=4)
    return pl.pallas_call(softmax, out_shape=x, grid=(4,), compiler_params=params)(x)


def softmax_over_the_padding_repaired(x: jax.Array) -> jax.Array:
    def softmax(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row, column = pl.program_id(0), jnp.arange(128)
        mask = column < 100
        x = plt.load(x_ref.at[row, column], mask=mask, other=-jnp.inf)
        exp = jnp.exp(x - x.max())
        plt.store(out_ref.at[row, column], exp / exp.sum(), mask=mask)

    params = plt.CompilerParams(num_warps=4)
    return pl.pallas_call(softmax, out_shape=x, grid=(4,), compiler_params=params)(x)


def tile_over_shared_memory(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile_ref, barrier)
        plgpu.barrier_wait(barrier)
        out_ref[...] = tile_ref[...] * 2

    # 256 KiB; a block has 227 KiB.
    tile = plgpu.SMEM((512, 128), F32)  # FAULT
    return plgpu.kernel(double, out_type=x, scratch_types=[tile, plgpu.Barrier()])(x)


def tile_over_shared_memory_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        rows = pl.ds(jax.lax.axis_index("i") * 128, 128)
        plgpu.copy_gmem_to_smem(x_ref.at[rows], tile_ref, barrier)
        plgpu.barrier_wait(barrier)
        out_ref[rows, :] = tile_ref[...] * 2

    scratch = [plgpu.SMEM((128, 128), F32), plgpu.Barrier()]
    return plgpu.kernel(
        double, out_type=x, scratch_types=scratch, grid=(4,), grid_names=("i",)
    )(x)  # fmt: skip


def tma_copy_not_awaited(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile_ref, barrier)
        # The copy is still in flight.
        out_ref[...] = tile_ref[...] * 2  # FAULT
        plgpu.barrier_wait(barrier)

    scratch = [plgpu.SMEM((128, 128), F32), plgpu.Barrier()]
    return plgpu.kernel(double, out_type=x, scratch_types=scratch)(x)


def tma_copy_not_awaited_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, barrier: jax.Ref) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile_ref, barrier)
        plgpu.barrier_wait(barrier)
        out_ref[...] = tile_ref[...] * 2

    scratch = [plgpu.SMEM((128, 128), F32), plgpu.Barrier()]
    return plgpu.kernel(double, out_type=x, scratch_types=scratch)(x)


KERNELS = (
    BrokenKernel(
        fault="UninitializedRead",
        summary="A masked load without `other` fills up a row of a softmax.",
        function=softmax_over_the_padding,
        repaired=softmax_over_the_padding_repaired,
        reference=lambda x: jax.nn.softmax(x, axis=1),
        args=(jax.ShapeDtypeStruct((4, 100), F32),),
        targets=("h100",),
    ),
    BrokenKernel(
        fault="LoweringError",
        summary="A tile takes more shared memory than a block has.",
        function=tile_over_shared_memory,
        repaired=tile_over_shared_memory_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((512, 128), F32),),
        targets=("h100",),
        refused=(Refusal("lowering", "Mosaic GPU kernel exceeds available shared memory"),),
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The target of a TMA copy is read before its barrier is awaited.",
        function=tma_copy_not_awaited,
        repaired=tma_copy_not_awaited_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((128, 128), F32),),
        targets=("h100",),
    ),
)
