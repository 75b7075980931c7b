"""Accesses, copies and blocks that are not aligned to the tiles of TPU memory."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel, Refusal

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)


def unproven_lane_offset(offset: jax.Array, x: jax.Array) -> jax.Array:
    def take_columns(offset_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # It is a multiple of 128, but only the caller knows.
        out_ref[...] = x_ref[:, pl.ds(offset_ref[0], 128)]  # FAULT

    return _take_columns(take_columns, offset, x)


def unproven_lane_offset_repaired(offset: jax.Array, x: jax.Array) -> jax.Array:
    def take_columns(offset_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[:, pl.ds(pl.multiple_of(offset_ref[0], 128), 128)]

    return _take_columns(take_columns, offset, x)


def _take_columns(kernel: object, offset: jax.Array, x: jax.Array) -> jax.Array:
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=())
    out_shape = jax.ShapeDtypeStruct((8, 128), F32)
    return pl.pallas_call(kernel, out_shape=out_shape, grid_spec=spec)(offset, x)


def unaligned_dma(x: jax.Array) -> jax.Array:
    def copy_columns(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        # 64 lanes are half a tile.
        copy = pltpu.make_async_copy(x_ref.at[:, 0:64], tile_ref, sem)
        copy.start()  # FAULT
        copy.wait()
        out_ref[...] = tile_ref[...]

    return pl.pallas_call(
        copy_columns,
        out_shape=jax.ShapeDtypeStruct((8, 64), F32),
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((8, 64), F32), pltpu.SemaphoreType.DMA],
    )(x)


def unaligned_dma_repaired(x: jax.Array) -> jax.Array:
    def copy_columns(x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, sem: jax.Ref) -> None:
        copy = pltpu.make_async_copy(x_ref.at[:, 0:128], tile_ref, sem)
        copy.start()
        copy.wait()
        out_ref[...] = tile_ref[:, :64]

    return pl.pallas_call(
        copy_columns,
        out_shape=jax.ShapeDtypeStruct((8, 64), F32),
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)


def block_of_one_row(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # One row per grid point, as one would write it for a GPU.
    row = pl.BlockSpec((1, 128), lambda i: (i, 0))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(16,), in_specs=[row], out_specs=row)(x)


def block_of_one_row_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # Where the last two dimensions are whole, a block may have one of the others.
    row = pl.BlockSpec((1, 1, 128), lambda i: (i, 0, 0))
    call = pl.pallas_call(
        double, out_shape=jax.ShapeDtypeStruct((16, 1, 128), F32), grid=(16,), in_specs=[row],
        out_specs=row,
    )  # fmt: skip
    return call(x.reshape(16, 1, 128)).reshape(16, 128)


def block_of_100_elements(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    # A vector comes in blocks of 128 times a power of two, or of 1,024.
    block = pl.BlockSpec((100,), lambda i: (i,))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(10,), in_specs=[block], out_specs=block)(x)


def block_of_100_elements_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((128,), lambda i: (i,))
    return pl.pallas_call(double, out_shape=x, grid=(8,), in_specs=[block], out_specs=block)(x)


def int8_block_of_eight_rows(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    # A tile of int8 has 32 rows.
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))  # FAULT
    return pl.pallas_call(copy, out_shape=x, grid=(8,), in_specs=[rows], out_specs=rows)(x)


def int8_block_of_eight_rows_repaired(x: jax.Array) -> jax.Array:
    def copy(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...]

    rows = pl.BlockSpec((32, 128), lambda i: (i, 0))
    return pl.pallas_call(copy, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)


X = (jax.ShapeDtypeStruct((16, 128), F32),)
OFFSET = jax.ShapeDtypeStruct((1,), jnp.int32)
WIDE = jax.ShapeDtypeStruct((8, 256), F32)

UNPROVEN = Refusal(
    "compile",
    "E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: "
    "cannot statically prove that index in dimension 1 is a multiple of 128",
)

KERNELS = (
    BrokenKernel(
        fault="UnprovenAlignment",
        summary="Columns are loaded from an offset that cannot be proven to be aligned.",
        function=unproven_lane_offset,
        repaired=unproven_lane_offset_repaired,
        reference=lambda offset, x: x[:, 128:],
        args=(OFFSET, WIDE),
        values={0: (128,)},
        refused=(UNPROVEN,),
    ),
    BrokenKernel(
        fault="UnalignedDma",
        summary="A copy takes half a tile.",
        function=unaligned_dma,
        repaired=unaligned_dma_repaired,
        reference=lambda x: x[:, :64],
        args=(jax.ShapeDtypeStruct((8, 128), F32),),
        refused=(
            Refusal(
                "compile",
                "Source and target leading tiles have different trailing dimensions",
                before="0.0.50",
            ),
            Refusal(
                "compile",
                "The contiguous inner slice in the DMA transfer must be divisible by 512 bytes",
                since="0.0.50",
            ),
        ),
    ),
    BrokenKernel(
        fault="BlockShapeTiling",
        summary="A block is one row of a matrix.",
        function=block_of_one_row,
        repaired=block_of_one_row_repaired,
        reference=lambda x: x * 2,
        args=X,
        refused=(
            Refusal(
                "lowering",
                "last two dimensions of your block shape are divisible by 8 and 128 respectively",
            ),
        ),
    ),
    BrokenKernel(
        fault="BlockShapeTiling",
        summary="A block of a vector has 100 elements.",
        function=block_of_100_elements,
        repaired=block_of_100_elements_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((1000,), F32),),
        refused=(
            Refusal(
                "lowering", "The Pallas TPU lowering currently requires that rank 1 block shapes"
            ),
        ),
    ),
    BrokenKernel(
        fault="BlockShapeTiling",
        summary="A block of int8 has the 8 rows of a block of float32.",
        function=int8_block_of_eight_rows,
        repaired=int8_block_of_eight_rows_repaired,
        reference=lambda x: x,
        args=(jax.ShapeDtypeStruct((64, 128), jnp.int8),),
        refused=(
            Refusal("compile", "E2002: CompileTimeMosaicMisalignedBlockAndTiling", before="0.0.50"),
        ),
    ),
)
