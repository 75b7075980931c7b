"""Broken promises to the compiler, and failing checks."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel, Refusal

F32 = jnp.float32


def false_lane_multiple(offset: jax.Array, x: jax.Array) -> jax.Array:
    def take_columns(offset_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The offset is 64: the compiler trusts the hint, and reads the columns from 0 on.
        start = pl.multiple_of(offset_ref[0], 128)  # FAULT
        out_ref[...] = x_ref[:, pl.ds(start, 128)]

    return _take_columns(take_columns, offset, x)


def false_lane_multiple_repaired(offset: jax.Array, x: jax.Array) -> jax.Array:
    def take_columns(offset_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        start = pl.multiple_of(offset_ref[0] // 128 * 128, 128)
        wide = x_ref[:, pl.ds(start, 256)]
        out_ref[...] = pltpu.roll(wide, 256 - offset_ref[0] % 128, 1)[:, :128]

    return _take_columns(take_columns, offset, x)


def _take_columns(kernel: object, offset: jax.Array, x: jax.Array) -> jax.Array:
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=())
    out_shape = jax.ShapeDtypeStruct((8, 128), F32)
    return pl.pallas_call(kernel, out_shape=out_shape, grid_spec=spec)(offset, x)


def failing_debug_check(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def mask_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        length = lengths_ref[pl.program_id(0)]
        # The second length is 9, and a block has 8 rows.
        pl.debug_check(length <= 8, "a length is longer than its block")  # FAULT
        row = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        out_ref[...] = jnp.where(row < length, x_ref[...], 0.0)

    return _mask_rows(mask_rows, lengths, x)


def failing_debug_check_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def mask_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        length = jnp.minimum(lengths_ref[pl.program_id(0)], 8)
        pl.debug_check(length <= 8, "a length is longer than its block")
        row = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        out_ref[...] = jnp.where(row < length, x_ref[...], 0.0)

    return _mask_rows(mask_rows, lengths, x)


def check_without_debug(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def mask_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        length = lengths_ref[pl.program_id(0)]
        # What jax's own guide recommends, and what no jax from 0.10.1 on can run in a kernel.
        checkify.check(length >= 0, "a length is negative")  # FAULT
        row = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        out_ref[...] = jnp.where(row < length, x_ref[...], 0.0)

    return _mask_rows(mask_rows, lengths, x)


def check_without_debug_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def mask_rows(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        length = lengths_ref[pl.program_id(0)]
        pl.debug_check(length >= 0, "a length is negative")
        row = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        out_ref[...] = jnp.where(row < length, x_ref[...], 0.0)

    return _mask_rows(mask_rows, lengths, x)


def _mask_rows(kernel: object, lengths: jax.Array, x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, 128), lambda i, lengths: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[rows], out_specs=rows
    )
    return pl.pallas_call(kernel, out_shape=x, grid_spec=spec)(lengths, x)


def mask_rows_reference(lengths: jax.Array, x: jax.Array) -> jax.Array:
    row = jnp.tile(jnp.arange(8), 2)
    return jnp.where((row < jnp.repeat(lengths, 8))[:, None], x, 0.0)


LENGTHS = jax.ShapeDtypeStruct((2,), jnp.int32)
X = jax.ShapeDtypeStruct((16, 128), F32)


KERNELS = (
    BrokenKernel(
        fault="FalseHint",
        summary="A column offset is declared a multiple of 128, and is 64.",
        function=false_lane_multiple,
        repaired=false_lane_multiple_repaired,
        reference=lambda offset, x: lax.dynamic_slice_in_dim(x, offset[0], 128, axis=1),
        args=(jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((8, 256), F32)),
        values={0: (64,)},
    ),
    BrokenKernel(
        fault="CheckFailed",
        summary="A debug_check fails at the second grid point.",
        function=failing_debug_check,
        repaired=failing_debug_check_repaired,
        reference=mask_rows_reference,
        args=(LENGTHS, X),
        values={0: (5, 9)},
    ),
    BrokenKernel(
        fault="UnsupportedCheck",
        summary="A kernel calls checkify.check.",
        function=check_without_debug,
        repaired=check_without_debug_repaired,
        reference=mask_rows_reference,
        args=(LENGTHS, X),
        values={0: (5, 8)},
        refused=(Refusal("lowering", "Non-debug checks are not supported by the Mosaic backend"),),
    ),
)
