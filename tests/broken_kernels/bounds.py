"""Reads, writes and blocks out of bounds."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
WHOLE = pl.BlockSpec((16, 128), lambda i: (0, 0))


def read_before_the_start(x: jax.Array) -> jax.Array:
    def difference(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(r: jax.Array, _: None) -> None:
            # There is no row before row 0.
            before = x_ref[pl.ds(r - 1, 1), :]  # FAULT
            out_ref[pl.ds(r, 1), :] = x_ref[pl.ds(r, 1), :] - before

        lax.fori_loop(0, 16, row, None)

    return pl.pallas_call(difference, out_shape=x)(x)


def read_before_the_start_repaired(x: jax.Array) -> jax.Array:
    def difference(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def row(r: jax.Array, _: None) -> None:
            out_ref[pl.ds(r, 1), :] = x_ref[pl.ds(r, 1), :] - x_ref[pl.ds(r - 1, 1), :]

        out_ref[0:1, :] = x_ref[0:1, :]
        lax.fori_loop(1, 16, row, None)

    return pl.pallas_call(difference, out_shape=x)(x)


def write_past_the_end(x: jax.Array) -> jax.Array:
    def shift_down(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        # At the last grid point the rows are 12 to 20, of 16.
        out_ref[pl.ds(i * 8 + 4, 8), :] = x_ref[...]  # FAULT

    return pl.pallas_call(shift_down, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=WHOLE)(x)


def write_past_the_end_repaired(x: jax.Array) -> jax.Array:
    def shift_down(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)
            out_ref[pl.ds(4, 8), :] = x_ref[...]

        @pl.when(i == 1)
        def _end() -> None:
            out_ref[pl.ds(12, 4), :] = x_ref[pl.ds(0, 4), :]

    return pl.pallas_call(shift_down, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=WHOLE)(x)


def scalar_read_past_the_end(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def scale_by_length(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)
        # A table of ends is read as if it were one of starts and ends, one entry longer.
        length = lengths_ref[i + 1] - lengths_ref[i]  # FAULT
        out_ref[...] = x_ref[...] * length.astype(F32)

    return _with_lengths(scale_by_length, lengths, x)


def scalar_read_past_the_end_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def scale_by_length(lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        i = pl.program_id(0)
        start = jnp.where(i == 0, 0, lengths_ref[jnp.maximum(i - 1, 0)])
        out_ref[...] = x_ref[...] * (lengths_ref[i] - start).astype(F32)

    return _with_lengths(scale_by_length, lengths, x)


def _with_lengths(kernel: object, lengths: jax.Array, x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, 128), lambda i, lengths: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[rows], out_specs=rows
    )
    return pl.pallas_call(kernel, out_shape=x, grid_spec=spec)(lengths, x)


def block_before_the_array(x: jax.Array) -> jax.Array:
    def subtract_previous(x_ref: jax.Ref, previous_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] - previous_ref[...]

    return pl.pallas_call(
        subtract_previous,
        out_shape=x,
        grid=(2,),
        # The first block has no previous one.
        in_specs=[ROWS, pl.BlockSpec((8, 128), lambda i: (i - 1, 0))],  # FAULT
        out_specs=ROWS,
    )(x, x)


def block_before_the_array_repaired(x: jax.Array) -> jax.Array:
    def subtract_previous(x_ref: jax.Ref, previous_ref: jax.Ref, out_ref: jax.Ref) -> None:
        is_first = pl.program_id(0) == 0
        out_ref[...] = x_ref[...] - jnp.where(is_first, 0.0, previous_ref[...])

    return pl.pallas_call(
        subtract_previous,
        out_shape=x,
        grid=(2,),
        in_specs=[ROWS, pl.BlockSpec((8, 128), lambda i: (jnp.maximum(i - 1, 0), 0))],
        out_specs=ROWS,
    )(x, x)


def element_offset_as_block_index(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(
        double,
        out_shape=x,
        grid=(4,),
        # An index map counts blocks: Pallas multiplies by the block's size once more.
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i * 8, 0))],  # FAULT
        out_specs=ROWS,
    )(x)


def element_offset_as_block_index_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(double, out_shape=x, grid=(4,), in_specs=[ROWS], out_specs=ROWS)(x)


X = (jax.ShapeDtypeStruct((16, 128), F32),)

KERNELS = (
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="The row before row 0 is loaded.",
        function=read_before_the_start,
        repaired=read_before_the_start_repaired,
        reference=lambda x: jnp.diff(x, axis=0, prepend=0.0),
        args=X,
    ),
    BrokenKernel(
        fault="OutOfBoundsRead",
        summary="A table in SMEM is read one entry past its end.",
        function=scalar_read_past_the_end,
        repaired=scalar_read_past_the_end_repaired,
        reference=lambda ends, x: x * jnp.repeat(jnp.diff(ends, prepend=0), 8)[:, None],
        args=(jax.ShapeDtypeStruct((2,), jnp.int32), *X),
        values={0: (3, 5)},
    ),
    BrokenKernel(
        fault="OutOfBoundsWrite",
        summary="The slice that is stored to reaches past the last row at the last grid point.",
        function=write_past_the_end,
        repaired=write_past_the_end_repaired,
        reference=lambda x: jnp.pad(x, ((4, 0), (0, 0)))[:16],
        args=X,
    ),
    BrokenKernel(
        fault="BlockOutOfBounds",
        summary="An index map names the block before the first one.",
        function=block_before_the_array,
        repaired=block_before_the_array_repaired,
        reference=lambda x: x - jnp.pad(x[:8], ((8, 0), (0, 0))),
        args=X,
    ),
    BrokenKernel(
        fault="BlockOutOfBounds",
        summary="An index map returns the offset of the block's first row, not its number.",
        function=element_offset_as_block_index,
        repaired=element_offset_as_block_index_repaired,
        reference=lambda x: x * 2,
        args=(jax.ShapeDtypeStruct((32, 128), F32),),
    ),
)
