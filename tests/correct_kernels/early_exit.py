"""Steps that are skipped, and loops that end early."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, integers, normal, table

F32, I32 = jnp.float32, jnp.int32
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


@equals(np.sqrt, np.abs(normal(8, 128)) + 1)
def square_root_by_newton(x):
    """Until nothing changes by more than a little."""

    def kernel(x_ref, out_ref):
        def goes_on(state):
            estimate, before, steps = state
            return (jnp.abs(estimate - before).max() > 1e-6) & (steps < 50)

        def improve(state):
            estimate, _, steps = state
            return 0.5 * (estimate + x_ref[...] / estimate), estimate, steps + 1

        start = (x_ref[...], x_ref[...] + 1, 0)
        out_ref[...] = lax.while_loop(goes_on, improve, start)[0]

    return pl.pallas_call(kernel, out_shape=x)(x)


def _sums_of_lengths(lengths, x):
    rows = x.reshape(3, 4, 8, 128)
    return np.stack([r[:n].sum(0) for n, r in zip(lengths, rows, strict=True)])


@equals(_sums_of_lengths, table(2, 4, 0), normal(96, 128))
def skip_blocks_past_the_length(lengths, x):
    def kernel(lengths_ref, x_ref, out_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(j < lengths_ref[i])
        def _():
            out_ref[...] += x_ref[...]

    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(3, 4),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j, lengths: (4 * i + j, 0))],
        out_specs=pl.BlockSpec((None, 8, 128), lambda i, j, lengths: (i, 0, 0)),
    )
    out = jax.ShapeDtypeStruct((3, 8, 128), F32)
    return pl.pallas_call(kernel, out_shape=out, grid_spec=grid_spec)(lengths, x)


@equals(lambda mode, x: x if mode[0] == 0 else np.maximum(x, 0), table(1), normal(8, 128))
def activation_by_mode(mode, x):
    def kernel(mode_ref, x_ref, out_ref):
        out_ref[...] = lax.cond(
            mode_ref[0] == 0, lambda x: x, lambda x: jnp.maximum(x, 0.0), x_ref[...]
        )

    return pl.pallas_call(kernel, out_shape=x, in_specs=[SMEM, pl.BlockSpec()])(mode, x)


@equals(lambda x: np.argmax(x > 90)[None].astype(np.int32), integers(0, 100, 64))
def first_large_number(x):
    def kernel(x_ref, out_ref):
        out_ref[0] = lax.while_loop(
            lambda i: (i < 64) & (x_ref[jnp.minimum(i, 63)] <= 90), lambda i: i + 1, 0
        )

    out = jax.ShapeDtypeStruct((1,), I32)
    return pl.pallas_call(kernel, out_shape=out, in_specs=[SMEM], out_specs=SMEM)(x)


@equals(
    lambda x, y: np.searchsorted(x, y).astype(np.int32),
    np.sort(integers(0, 1000, 64)),
    integers(0, 1000, 8),
)
def binary_search(x, y):
    def kernel(x_ref, y_ref, out_ref):
        def search(i, _):
            def halve(bounds):
                low, high = bounds
                middle = (low + high) // 2
                is_less = x_ref[middle] < y_ref[i]
                return jnp.where(is_less, middle + 1, low), jnp.where(is_less, high, middle)

            out_ref[i] = lax.while_loop(lambda b: b[0] < b[1], halve, (0, 64))[0]

        lax.fori_loop(0, 8, search, None)

    return pl.pallas_call(kernel, out_shape=y, in_specs=[SMEM, SMEM], out_specs=SMEM)(x, y)


@equals(np.gcd, integers(1, 500, 16), integers(1, 400, 16) + 100)
def greatest_common_divisor(x, y):
    def kernel(x_ref, y_ref, out_ref):
        def one(i, _):
            out_ref[i] = lax.while_loop(
                lambda ab: ab[1] != 0,
                lambda ab: (ab[1], lax.rem(ab[0], jnp.maximum(ab[1], 1))),
                (x_ref[i], y_ref[i]),
            )[0]

        lax.fori_loop(0, 16, one, None)

    return pl.pallas_call(kernel, out_shape=x, in_specs=[SMEM, SMEM], out_specs=SMEM)(x, y)


@equals(lambda x: np.tril(x), normal(32, 512)[:, :128])
def lower_triangle(x):
    """Blocks above the diagonal are cleared and not read."""

    def kernel(x_ref, out_ref):
        i, j = pl.program_id(0), pl.program_id(1)

        @pl.when(j > i)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(j <= i)
        def _():
            row = lax.broadcasted_iota(I32, (8, 128), 0) + i * 8
            column = lax.broadcasted_iota(I32, (8, 128), 1) + j * 128
            out_ref[...] = jnp.where(row >= column, x_ref[...], 0.0)

    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    return pl.pallas_call(kernel, out_shape=x, grid=(4, 1), in_specs=[block], out_specs=block)(x)


@equals(lambda x: np.argmax(x.max(1) > 2.5)[None].astype(np.int32), normal(64, 128))
def first_row_over_a_limit(x):
    """A flag in SMEM ends the search; later blocks are not looked at."""

    def kernel(x_ref, out_ref, found_ref):
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _():
            found_ref[0] = 0
            out_ref[0] = -1

        @pl.when(found_ref[0] == 0)
        def _():
            over = x_ref[...].max(1) > 2.5
            row = lax.broadcasted_iota(I32, (8, 1), 0)[:, 0]
            first = jnp.where(over, row, 8).min()

            @pl.when(first < 8)
            def _():
                out_ref[0] = i * 8 + first
                found_ref[0] = 1

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1,), I32),
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=SMEM,
        scratch_shapes=[pltpu.SMEM((1,), I32)],
    )(x)


@equals(lambda op, x: (x + 1, x * 2, -x)[op[0]], table(2), normal(8, 128))
def one_of_three_branches(op, x):
    def kernel(op_ref, x_ref, out_ref):
        branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]
        out_ref[...] = lax.switch(op_ref[0], branches, x_ref[...])

    return pl.pallas_call(kernel, out_shape=x, in_specs=[SMEM, pl.BlockSpec()])(op, x)
