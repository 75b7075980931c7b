"""Reads, writes and blocks out of bounds."""
# mypy: disable-error-code="no-any-return,untyped-decorator"

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import BrokenKernel

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
WHOLE = pl.BlockSpec((16, 128), lambda i: (0, 0))


def read_past_the_end(x: jax.Array) -> jax.Array:
    def rotate_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        start = pl.program_id(0) * 8 + 4
        # At the last grid point the rows are 12 to 20, of 16.
        out_ref[...] = x_ref[pl.ds(start, 8), :]  # FAULT

    return pl.pallas_call(rotate_rows, out_shape=x, grid=(2,), in_specs=[WHOLE], out_specs=ROWS)(x)


def read_past_the_end_repaired(x: jax.Array) -> jax.Array:
    def rotate_rows(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        start = pl.program_id(0) * 8 + 4
        out_ref[pl.ds(0, 4), :] = x_ref[pl.ds(start, 4), :]
        out_ref[pl.ds(4, 4), :] = x_ref[pl.ds((start + 4) % 16, 4), :]

    return pl.pallas_call(rotate_rows, out_shape=x, grid=(2,), in_specs=[WHOLE], out_specs=ROWS)(x)


def page_past_the_pool(page_table: jax.Array, pages: jax.Array) -> jax.Array:
    def gather_page(page_table_ref: jax.Ref, page_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = page_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3,),
        # The table is trusted: its last entry, 9, was never filled in, and there are 4 pages.
        in_specs=[pl.BlockSpec((1, 8, 128), lambda i, table: (table[i], 0, 0))],  # FAULT
        out_specs=pl.BlockSpec((1, 8, 128), lambda i, table: (i, 0, 0)),
    )
    out_shape = jax.ShapeDtypeStruct((3, 8, 128), F32)
    return pl.pallas_call(gather_page, out_shape=out_shape, grid_spec=spec)(page_table, pages)


def page_past_the_pool_repaired(page_table: jax.Array, pages: jax.Array) -> jax.Array:
    def gather_page(page_table_ref: jax.Ref, page_ref: jax.Ref, out_ref: jax.Ref) -> None:
        is_filled = page_table_ref[pl.program_id(0)] < 4
        out_ref[...] = jnp.where(is_filled, page_ref[...], 0.0)

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3,),
        in_specs=[pl.BlockSpec((1, 8, 128), lambda i, table: (jnp.minimum(table[i], 3), 0, 0))],
        out_specs=pl.BlockSpec((1, 8, 128), lambda i, table: (i, 0, 0)),
    )
    out_shape = jax.ShapeDtypeStruct((3, 8, 128), F32)
    return pl.pallas_call(gather_page, out_shape=out_shape, grid_spec=spec)(page_table, pages)


X = (jax.ShapeDtypeStruct((16, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="A slice reaches past the last row at the last grid point.",
        function=read_past_the_end,
        repaired=read_past_the_end_repaired,
        reference=lambda x: jnp.roll(x, -4, axis=0),
        args=X,
    ),
    BrokenKernel(
        fault="BlockOutOfBounds",
        summary="A page table in scalar prefetch contains a page number outside the pool.",
        function=page_past_the_pool,
        repaired=page_past_the_pool_repaired,
        reference=lambda table, pages: jnp.where(
            (table < 4)[:, None, None], pages[jnp.minimum(table, 3)], 0.0
        ),
        args=(jax.ShapeDtypeStruct((3,), jnp.int32), jax.ShapeDtypeStruct((4, 8, 128), F32)),
        values={0: (2, 0, 9)},
    ),
)
