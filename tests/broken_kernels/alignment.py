"""Accesses, copies and blocks that are not aligned to the tiles of TPU memory."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)


@fault(
    "UnprovenAlignment",
    "Columns are loaded from an offset that cannot be proven to be aligned.",
    lambda offset, x: x[:, 128:],
    jax.ShapeDtypeStruct((1,), jnp.int32),
    jax.ShapeDtypeStruct((8, 256), F32),
    values={0: (128,)},
    refused=(
        Refusal(
            "compile",
            "E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: "
            "cannot statically prove that index in dimension 1 is a multiple of 128",
        ),
    ),
)
@called(
    jax.ShapeDtypeStruct((8, 128), F32),
    prefetch=1,
    grid=(),
)
def unproven_lane_offset(offset_ref, x_ref, out_ref, repaired=False):
    # It is a multiple of 128, but only the caller knows.
    start = pl.multiple_of(offset_ref[0], 128) if repaired else offset_ref[0]
    out_ref[...] = x_ref[:, pl.ds(start, 128)]  # FAULT


@fault(
    "UnalignedDma",
    "A copy takes half a tile.",
    lambda x: x[:, :64],
    jax.ShapeDtypeStruct((8, 128), F32),
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
)
def unaligned_dma(x, *, repaired=False):
    lanes = 128 if repaired else 64

    def copy_columns(x_ref, out_ref, tile_ref, sem):
        # 64 lanes are half a tile.
        copy = pltpu.make_async_copy(x_ref.at[:, 0:lanes], tile_ref, sem)
        copy.start()  # FAULT
        copy.wait()
        out_ref[...] = tile_ref[:, :64]

    return pl.pallas_call(
        copy_columns,
        out_shape=jax.ShapeDtypeStruct((8, 64), F32),
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((8, lanes), F32), pltpu.SemaphoreType.DMA],
    )(x)


def double(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


@fault(
    "BlockShapeTiling",
    "A block is one row of a matrix.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((16, 128), F32),
    refused=(
        Refusal(
            "lowering",
            "last two dimensions of your block shape are divisible by 8 and 128 respectively",
        ),
    ),
)
def block_of_one_row(x, *, repaired=False):
    if repaired:  # where the last two dimensions are whole, a block may have one of the others
        row = pl.BlockSpec((1, 1, 128), lambda i: (i, 0, 0))
        x = x.reshape(16, 1, 128)
    else:
        # One row per grid point, as one would write it for a GPU.
        row = pl.BlockSpec((1, 128), lambda i: (i, 0))  # FAULT
    call = pl.pallas_call(double, out_shape=x, grid=(16,), in_specs=[row], out_specs=row)
    return call(x).reshape(16, 128)


@fault(
    "BlockShapeTiling",
    "A block of a vector has 100 elements.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((1000,), F32),
    refused=(
        Refusal("lowering", "The Pallas TPU lowering currently requires that rank 1 block shapes"),
    ),
)
def block_of_100_elements(x, *, repaired=False):
    size, steps = (128, 8) if repaired else (100, 10)
    # A vector comes in blocks of 128 times a power of two, or of 1,024.
    block = pl.BlockSpec((size,), lambda i: (i,))  # FAULT
    return pl.pallas_call(double, out_shape=x, grid=(steps,), in_specs=[block], out_specs=block)(x)


@fault(
    "BlockShapeTiling",
    "A block of int8 has the 8 rows of a block of float32.",
    lambda x: x,
    jax.ShapeDtypeStruct((64, 128), jnp.int8),
    refused=(
        Refusal("compile", "E2002: CompileTimeMosaicMisalignedBlockAndTiling", before="0.0.50"),
    ),
)
def int8_block_of_eight_rows(x, *, repaired=False):
    def copy(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    size, steps = (32, 2) if repaired else (8, 8)
    # A tile of int8 has 32 rows.
    rows = pl.BlockSpec((size, 128), lambda i: (i, 0))  # FAULT
    return pl.pallas_call(copy, out_shape=x, grid=(steps,), in_specs=[rows], out_specs=rows)(x)
