"""State that is carried from block to block."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)


@equals(lambda x: np.maximum.accumulate(x.reshape(4, 8, 128), 0).reshape(32, 128), normal(32, 128))
def peak_hold(x):
    def kernel(x_ref, out_ref, peak_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            peak_ref[...] = x_ref[...]

        peak_ref[...] = jnp.maximum(peak_ref[...], x_ref[...])
        out_ref[...] = peak_ref[...]

    return pl.pallas_call(
        kernel, out_shape=x, grid=(4,), in_specs=[ROWS], out_specs=ROWS, scratch_shapes=[TILE]
    )(x)


def _moving_average(x):
    average, rows = np.zeros(128, np.float32), []
    for row in x:
        average = np.float32(0.9) * average + np.float32(0.1) * row
        rows.append(average)
    return np.stack(rows)


@equals(_moving_average, normal(32, 128))
def exponential_moving_average(x):
    def kernel(x_ref, out_ref, average_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            average_ref[...] = jnp.zeros_like(average_ref)

        def step(i, average):
            average = 0.9 * average + 0.1 * x_ref[pl.ds(i, 1), :]
            out_ref[pl.ds(i, 1), :] = average
            return average

        average_ref[...] = lax.fori_loop(0, 8, step, average_ref[...])

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)


@equals(lambda x: np.cumsum(x, 0), normal(64, 128))
def cumulative_sum_of_rows(x):
    """Within a block by a product with a triangle of ones."""

    def kernel(x_ref, out_ref, carry_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            carry_ref[...] = jnp.zeros_like(carry_ref)

        row = lax.broadcasted_iota(I32, (16, 16), 0)
        column = lax.broadcasted_iota(I32, (16, 16), 1)
        triangle = (column <= row).astype(F32)
        sums = jnp.dot(triangle, x_ref[...], precision="highest") + carry_ref[...]
        out_ref[...] = sums
        carry_ref[...] = sums[15:16]

    rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[rows],
        out_specs=rows,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)


@equals(
    lambda x: np.broadcast_to(np.log(np.exp(x).sum(1, keepdims=True)), (16, 128)), normal(16, 512)
)
def log_sum_exp_online(x):
    def kernel(x_ref, out_ref, max_ref, sum_ref):
        j = pl.program_id(1)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)

        before = max_ref[...]
        now = jnp.maximum(before, x_ref[...].max(1, keepdims=True))
        terms = jnp.exp(x_ref[...] - now[:, :1])
        sum_ref[...] = jnp.exp(before - now) * sum_ref[...] + terms.sum(1, keepdims=True)
        max_ref[...] = now

        @pl.when(j == pl.num_programs(1) - 1)
        def _():
            out_ref[...] = max_ref[...] + jnp.log(sum_ref[...])

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 4),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        scratch_shapes=[TILE, TILE],
    )(x)


@equals(lambda x: np.stack([x.mean(0), x.var(0)]), normal(40, 128))
def mean_and_variance(x):
    """Welford's method for blocks, with the count in SMEM."""

    def kernel(x_ref, out_ref, mean_ref, m2_ref, count_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            count_ref[0] = 0.0
            mean_ref[...] = jnp.zeros_like(mean_ref)
            m2_ref[...] = jnp.zeros_like(m2_ref)

        before = count_ref[0]
        total = before + 8.0
        mean = x_ref[...].mean(0, keepdims=True)
        delta = mean - mean_ref[...]
        m2 = ((x_ref[...] - mean) ** 2).sum(0, keepdims=True)
        m2_ref[...] += m2 + delta**2 * before * 8.0 / total
        mean_ref[...] += delta * 8.0 / total
        count_ref[0] = total

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)
        def _():
            out_ref[0:1, :] = mean_ref[...]
            out_ref[1:2, :] = m2_ref[...] / total

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((2, 128), F32),
        grid=(5,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((2, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((1, 128), F32)] * 2 + [pltpu.SMEM((1,), F32)],
    )(x)


def _positives_before(x):
    counts = (x > 0).reshape(4, -1).sum(1)
    return (np.cumsum(counts) - counts).astype(np.int32)


@equals(_positives_before, normal(32, 128))
def offsets_of_a_compaction(x):
    """How many positive numbers come before each block: a counter in SMEM."""

    def kernel(x_ref, out_ref, count_ref):
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _():
            count_ref[0] = 0

        out_ref[i] = count_ref[0]
        count_ref[0] += jnp.sum((x_ref[...] > 0).astype(F32)).astype(I32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((4,), I32),
        grid=(4,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SMEM((1,), I32)],
    )(x)


@equals(lambda x: np.diff(x, axis=0, prepend=0).astype(np.float32), normal(32, 128))
def first_difference(x):
    """The last row of each block is kept for the next one."""

    def kernel(x_ref, out_ref, last_ref):
        before = jnp.where(pl.program_id(0) == 0, 0.0, last_ref[...])
        out_ref[0:1, :] = x_ref[0:1, :] - before
        out_ref[1:8, :] = x_ref[1:8, :] - x_ref[0:7, :]
        last_ref[...] = x_ref[7:8, :]

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[ROWS],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)


@equals(lambda x: np.concatenate([np.zeros((8, 128), np.float32), x[:-8]]), normal(40, 128))
def delay_of_one_block(x):
    def kernel(x_ref, out_ref, kept_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            kept_ref[...] = jnp.zeros_like(kept_ref)

        out_ref[...] = kept_ref[...]
        kept_ref[...] = x_ref[...]

    return pl.pallas_call(
        kernel, out_shape=x, grid=(5,), in_specs=[ROWS], out_specs=ROWS, scratch_shapes=[TILE]
    )(x)


@equals(lambda x: np.argmax(x, 0)[None].astype(np.int32), normal(48, 128))
def argument_of_the_maximum(x):
    """The output holds the best row so far, and stays resident."""

    def kernel(x_ref, out_ref, best_ref):
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _():
            best_ref[...] = jnp.full_like(best_ref, -jnp.inf)
            out_ref[...] = jnp.zeros_like(out_ref)

        best = x_ref[...].max(0, keepdims=True)
        row = jnp.argmax(x_ref[...], 0)[None] + i * 8
        better = best > best_ref[...]
        out_ref[...] = jnp.where(better, row, out_ref[...])
        best_ref[...] = jnp.maximum(best, best_ref[...])

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, 128), I32),
        grid=(6,),
        in_specs=[ROWS],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)


def _scan(a, x):
    state, rows = np.zeros(128, np.float32), []
    for gate, row in zip(a, x, strict=True):
        state = gate * state + row
        rows.append(state)
    return np.stack(rows)


@equals(_scan, np.abs(normal(24, 128)) % 1, normal(24, 128))
def gated_linear_recurrence(a, x):
    def kernel(a_ref, x_ref, out_ref, state_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            state_ref[...] = jnp.zeros_like(state_ref)

        state = state_ref[...]
        for i in range(8):
            state = a_ref[i : i + 1, :] * state + x_ref[i : i + 1, :]
            out_ref[i : i + 1, :] = state
        state_ref[...] = state

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(3,),
        in_specs=[ROWS, ROWS],
        out_specs=ROWS,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(a, x)


@equals(lambda x: np.bincount(x.ravel(), minlength=16).astype(np.int32), integers(0, 16, 32))
def histogram(x):
    def kernel(x_ref, out_ref):
        def clear(i, _):
            out_ref[i] = 0

        def count(i, _):
            out_ref[x_ref[i]] += 1

        lax.fori_loop(0, 16, clear, None)
        lax.fori_loop(0, 32, count, None)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    out = jax.ShapeDtypeStruct((16,), I32)
    return pl.pallas_call(kernel, out_shape=out, in_specs=[smem], out_specs=smem)(x)


@equals(lambda x: np.cumsum(x.reshape(4, 2, 8, 128).sum(1), 0).reshape(32, 128), normal(64, 128))
def running_total_over_row_blocks(x):
    """Total of all rows so far, in eight lanes of rows; each block comes in two chunks."""

    def kernel(x_ref, out_ref, total_ref):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
        def _():
            total_ref[...] = jnp.zeros_like(total_ref)

        total_ref[...] += x_ref[...]

        @pl.when(pl.program_id(1) == 1)
        def _():
            out_ref[...] = total_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((32, 128), F32),
        grid=(4, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (2 * i + k, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        scratch_shapes=[TILE],
    )(x)
