"""Index maps and copies that are driven by tables."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax.experimental import pallas as pl

from .record import equals, normal, table

F32 = jnp.float32


@equals(lambda pages, x: x[pages].reshape(32, 128), table(5, 1, 7, 2), normal(8, 8, 128))
@called(
    jax.ShapeDtypeStruct((32, 128), F32),
    prefetch=1,
    grid=(4,),
    in_specs=[pl.BlockSpec((None, 8, 128), lambda i, pages: (pages[i], 0, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, pages: (i, 0)),
)
def paged_gather(_, page_ref, out_ref):
    out_ref[...] = page_ref[...]


def _sums_of_pages(lengths, pages, pool):
    sums = [pool[p[:n]].sum((0, 1)) for n, p in zip(lengths, pages, strict=True)]
    return np.stack(sums)[:, None]


@equals(_sums_of_pages, table(3, 1), np.array([[4, 0, 2], [1, 0, 0]], np.int32), normal(6, 8, 128))
@called(
    jax.ShapeDtypeStruct((2, 1, 128), F32),
    prefetch=2,
    grid=(2, 3),
    in_specs=[pl.BlockSpec((None, 8, 128), lambda i, j, lengths, pages: (pages[i, j], 0, 0))],
    out_specs=pl.BlockSpec((None, 1, 128), lambda i, j, lengths, pages: (i, 0, 0)),
)
def sums_of_paged_sequences(lengths_ref, _, page_ref, out_ref):
    """Entries past the number of pages are zeros, and what they name is not added."""
    i, j = pl.program_id(0), pl.program_id(1)

    @pl.when(j == 0)
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    @pl.when(j < lengths_ref[i])
    def _():
        out_ref[...] += page_ref[...].sum(0, keepdims=True)


def _block_sparse(rows, columns, blocks, y):
    out = np.zeros((16, 128), np.float32)
    for i, j, block in zip(rows, columns, blocks, strict=True):
        out[8 * i : 8 * i + 8] += block @ y[128 * j : 128 * j + 128]
    return out


@equals(_block_sparse, table(0, 0, 1), table(0, 2, 1), normal(3, 8, 128), normal(384, 128))
@called(
    jax.ShapeDtypeStruct((16, 128), F32),
    prefetch=2,
    grid=(3,),
    in_specs=[
        pl.BlockSpec((None, 8, 128), lambda i, rows, columns: (i, 0, 0)),
        pl.BlockSpec((128, 128), lambda i, rows, columns: (columns[i], 0)),
    ],
    out_specs=pl.BlockSpec((8, 128), lambda i, rows, columns: (rows[i], 0)),
)
def block_sparse_product(rows_ref, _, block_ref, y_ref, out_ref):
    """Nonzero blocks, sorted by their row; a sum begins where the row changes."""
    i = pl.program_id(0)
    before = rows_ref[jnp.maximum(i - 1, 0)]

    @pl.when((i == 0) | (rows_ref[i] != before))
    def _():
        out_ref[...] = jnp.zeros_like(out_ref)

    out_ref[...] += jnp.dot(block_ref[...], y_ref[...], precision="highest")


def _segment_sums(starts, x):
    return np.stack([x[a:b].sum(0, keepdims=True) for a, b in itertools.pairwise(starts)])


@equals(_segment_sums, table(0, 3, 10, 10, 24), normal(24, 128))
@called(
    jax.ShapeDtypeStruct((4, 1, 128), F32),
    prefetch=1,
    grid=(4,),
    in_specs=[pl.BlockSpec((24, 128), lambda i, starts: (0, 0))],
    out_specs=pl.BlockSpec((None, 1, 128), lambda i, starts: (i, 0, 0)),
)
def sums_of_segments(starts_ref, x_ref, out_ref):
    """Rows from one entry of a table to the next; the third segment is empty."""
    i = pl.program_id(0)

    def add(row, total):
        return total + x_ref[pl.ds(row, 1), :]

    zero = jnp.zeros((1, 128), F32)
    out_ref[...] = jax.lax.fori_loop(starts_ref[i], starts_ref[i + 1], add, zero)
