"""State that is carried from block to block."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)


@equals(lambda x: np.maximum.accumulate(x.reshape(4, 8, 128), 0).reshape(32, 128), normal(32, 128))
@called(grid=(4,), block=ROWS, scratch_shapes=[TILE])
def peak_hold(x_ref, out_ref, peak_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        peak_ref[...] = x_ref[...]

    peak_ref[...] = jnp.maximum(peak_ref[...], x_ref[...])
    out_ref[...] = peak_ref[...]


@equals(lambda x: np.cumsum(x, 0), normal(64, 128))
@called(
    grid=(4,),
    block=pl.BlockSpec((16, 128), lambda i: (i, 0)),
    scratch_shapes=[pltpu.VMEM((1, 128), F32)],
)
def cumulative_sum_of_rows(x_ref, out_ref, carry_ref):
    """Within a block by a product with a triangle of ones."""

    @pl.when(pl.program_id(0) == 0)
    def _():
        carry_ref[...] = jnp.zeros_like(carry_ref)

    row = lax.broadcasted_iota(I32, (16, 16), 0)
    column = lax.broadcasted_iota(I32, (16, 16), 1)
    triangle = (column <= row).astype(F32)
    sums = jnp.dot(triangle, x_ref[...], precision="highest") + carry_ref[...]
    out_ref[...] = sums
    carry_ref[...] = sums[15:16]


def _positives_before(x):
    counts = (x > 0).reshape(4, -1).sum(1)
    return (np.cumsum(counts) - counts).astype(np.int32)


@equals(_positives_before, normal(32, 128))
@called(
    jax.ShapeDtypeStruct((4,), I32),
    grid=(4,),
    in_specs=[ROWS],
    out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
    scratch_shapes=[pltpu.SMEM((1,), I32)],
)
def offsets_of_a_compaction(x_ref, out_ref, count_ref):
    """How many positive numbers come before each block: a counter in SMEM."""
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _():
        count_ref[0] = 0

    out_ref[i] = count_ref[0]
    count_ref[0] += jnp.sum((x_ref[...] > 0).astype(F32)).astype(I32)


def _scan(a, x):
    state, rows = np.zeros(128, np.float32), []
    for gate, row in zip(a, x, strict=True):
        state = gate * state + row
        rows.append(state)
    return np.stack(rows)


@equals(_scan, np.abs(normal(24, 128)) % 1, normal(24, 128))
@called(
    grid=(3,), in_specs=[ROWS, ROWS], out_specs=ROWS, scratch_shapes=[pltpu.VMEM((1, 128), F32)]
)
def gated_linear_recurrence(a_ref, x_ref, out_ref, state_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        state_ref[...] = jnp.zeros_like(state_ref)

    state = state_ref[...]
    for i in range(8):
        state = a_ref[i : i + 1, :] * state + x_ref[i : i + 1, :]
        out_ref[i : i + 1, :] = state
    state_ref[...] = state


@equals(lambda x: np.bincount(x.ravel(), minlength=16).astype(np.int32), integers(0, 16, 32))
@called(jax.ShapeDtypeStruct((16,), I32), block=pl.BlockSpec(memory_space=pltpu.SMEM))
def histogram(x_ref, out_ref):
    def clear(i, _):
        out_ref[i] = 0

    def count(i, _):
        out_ref[x_ref[i]] += 1

    lax.fori_loop(0, 16, clear, None)
    lax.fori_loop(0, 32, count, None)


@equals(lambda x: np.cumsum(x.reshape(4, 2, 8, 128).sum(1), 0).reshape(32, 128), normal(64, 128))
@called(
    jax.ShapeDtypeStruct((32, 128), F32),
    grid=(4, 2),
    in_specs=[pl.BlockSpec((8, 128), lambda i, k: (2 * i + k, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
    scratch_shapes=[TILE],
)
def running_total_over_row_blocks(x_ref, out_ref, total_ref):
    """Total of all rows so far, in eight lanes of rows; each block comes in two chunks."""

    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _():
        total_ref[...] = jnp.zeros_like(total_ref)

    total_ref[...] += x_ref[...]

    @pl.when(pl.program_id(1) == 1)
    def _():
        out_ref[...] = total_ref[...]
