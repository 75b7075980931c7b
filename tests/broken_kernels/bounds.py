"""Reads, writes and blocks out of bounds."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl

from .record import fault

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
WHOLE = pl.BlockSpec((16, 128), lambda i: (0, 0))
X = jax.ShapeDtypeStruct((16, 128), F32)


@fault(
    "OutOfBoundsRead",
    "The row before row 0 is loaded.",
    lambda x: jnp.diff(x, axis=0, prepend=0.0),
    X,
)
@called()
def read_before_the_start(x_ref, out_ref, repaired=False):
    def row(r, _):
        # There is no row before row 0.
        before = x_ref[pl.ds(r - 1, 1), :]  # FAULT
        out_ref[pl.ds(r, 1), :] = x_ref[pl.ds(r, 1), :] - before

    out_ref[0:1, :] = x_ref[0:1, :]
    lax.fori_loop(1 if repaired else 0, 16, row, None)


@fault(
    "OutOfBoundsRead",
    "A table in SMEM is read one entry past its end.",
    lambda ends, x: x * jnp.repeat(jnp.diff(ends, prepend=0), 8)[:, None],
    jax.ShapeDtypeStruct((2,), jnp.int32),
    X,
    values={0: (3, 5)},
)
@called(prefetch=1, grid=(2,), block=ROWS)
def scalar_read_past_the_end(lengths_ref, x_ref, out_ref, repaired=False):
    i = pl.program_id(0)
    if repaired:
        start = jnp.where(i == 0, 0, lengths_ref[jnp.maximum(i - 1, 0)])
        length = lengths_ref[i] - start
    else:
        # A table of ends is read as if it were one of starts and ends, one entry longer.
        length = lengths_ref[i + 1] - lengths_ref[i]  # FAULT
    out_ref[...] = x_ref[...] * length.astype(F32)


@fault(
    "OutOfBoundsWrite",
    "The slice that is stored to reaches past the last row at the last grid point.",
    lambda x: jnp.pad(x, ((4, 0), (0, 0)))[:16],
    X,
)
@called(grid=(2,), in_specs=[ROWS], out_specs=WHOLE)
def write_past_the_end(x_ref, out_ref, repaired=False):
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _start():
        out_ref[...] = jnp.zeros_like(out_ref)

    if repaired:

        @pl.when(i == 0)
        def _upper():
            out_ref[4:12, :] = x_ref[...]

        @pl.when(i == 1)
        def _lower():
            out_ref[12:16, :] = x_ref[0:4, :]

    else:
        # At the last grid point the rows are 12 to 20, of 16.
        out_ref[pl.ds(i * 8 + 4, 8), :] = x_ref[...]  # FAULT


@fault(
    "BlockOutOfBounds",
    "An index map names the block before the first one.",
    lambda x: x - jnp.pad(x[:8], ((8, 0), (0, 0))),
    X,
)
def block_before_the_array(x, *, repaired=False):
    def subtract_previous(x_ref, previous_ref, out_ref):
        is_first = repaired & (pl.program_id(0) == 0)
        out_ref[...] = x_ref[...] - jnp.where(is_first, 0.0, previous_ref[...])

    first = 0 if repaired else -1
    # The first block has no previous one.
    previous = pl.BlockSpec((8, 128), lambda i: (jnp.maximum(i - 1, first), 0))  # FAULT
    return pl.pallas_call(
        subtract_previous, out_shape=x, grid=(2,), in_specs=[ROWS, previous], out_specs=ROWS
    )(x, x)


@fault(
    "BlockOutOfBounds",
    "An index map returns the offset of the block's first row, not its number.",
    lambda x: x * 2,
    jax.ShapeDtypeStruct((32, 128), F32),
)
def element_offset_as_block_index(x, *, repaired=False):
    def double(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    # An index map counts blocks: Pallas multiplies by the block's size once more.
    rows = pl.BlockSpec((8, 128), lambda i: (i * 8, 0))  # FAULT
    rows = ROWS if repaired else rows
    return pl.pallas_call(double, out_shape=x, grid=(4,), in_specs=[rows], out_specs=ROWS)(x)
