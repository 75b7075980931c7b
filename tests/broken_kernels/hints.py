"""Broken promises to the compiler, and failing checks."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import Refusal

from .record import fault

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
MASKED = pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1, grid=(2,), in_specs=[ROWS], out_specs=ROWS
)
LENGTHS = jax.ShapeDtypeStruct((2,), I32)
X = jax.ShapeDtypeStruct((16, 128), F32)


@fault(
    "FalseHint",
    "A column offset is declared a multiple of 128, and is 64.",
    lambda offset, x: lax.dynamic_slice_in_dim(x, offset[0], 128, axis=1),
    jax.ShapeDtypeStruct((1,), I32),
    jax.ShapeDtypeStruct((8, 256), F32),
    values={0: (64,)},
)
@called(
    jax.ShapeDtypeStruct((8, 128), F32),
    prefetch=1,
    grid=(),
)
def false_lane_multiple(offset_ref, x_ref, out_ref, repaired=False):
    if repaired:
        wide = x_ref[:, pl.ds(pl.multiple_of(offset_ref[0] // 128 * 128, 128), 256)]
        out_ref[...] = pltpu.roll(wide, 256 - offset_ref[0] % 128, 1)[:, :128]
        return
    # The offset is 64: the compiler trusts the hint, and reads the columns from 0 on.
    start = pl.multiple_of(offset_ref[0], 128)  # FAULT
    out_ref[...] = x_ref[:, pl.ds(start, 128)]


def mask_rows(length, x_ref, out_ref):
    row = lax.broadcasted_iota(I32, x_ref.shape, 0)
    out_ref[...] = jnp.where(row < length, x_ref[...], 0.0)


def mask_rows_reference(lengths, x):
    row = jnp.tile(jnp.arange(8), 2)
    return jnp.where((row < jnp.repeat(lengths, 8))[:, None], x, 0.0)


@fault(
    "CheckFailed",
    "A debug_check fails at the second grid point.",
    mask_rows_reference,
    LENGTHS,
    X,
    values={0: (5, 9)},
)
@called(grid_spec=MASKED)
def failing_debug_check(lengths_ref, x_ref, out_ref, repaired=False):
    length = lengths_ref[pl.program_id(0)]
    if repaired:
        length = jnp.minimum(length, 8)
    # The second length is 9, and a block has 8 rows.
    pl.debug_check(length <= 8, "a length is longer than its block")  # FAULT
    mask_rows(length, x_ref, out_ref)


@fault(
    "UnsupportedCheck",
    "A kernel calls checkify.check.",
    mask_rows_reference,
    LENGTHS,
    X,
    values={0: (5, 8)},
    refused=(Refusal("lowering", "Non-debug checks are not supported by the Mosaic backend"),),
)
@called(grid_spec=MASKED)
def check_without_debug(lengths_ref, x_ref, out_ref, repaired=False):
    length = lengths_ref[pl.program_id(0)]
    if repaired:
        pl.debug_check(length >= 0, "a length is negative")
    else:
        # What jax's own guide recommends, and what no jax from 0.10.1 on can run in a kernel.
        checkify.check(length >= 0, "a length is negative")  # FAULT
    mask_rows(length, x_ref, out_ref)
