"""Kernels that look slow, get no advice, and would be slower if they followed it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug


def selected_rows(ids: jax.Array, table: jax.Array, *, scales: bool) -> jax.Array:
    """Rows of a table by their numbers, a column that may scale the result as well."""

    def kernel(ids_ref: Any, table_ref: Any, o_ref: Any) -> None:
        found = ids_ref[...] == lax.broadcasted_iota(jnp.int32, (256, 32), 1)
        rows = jnp.dot(found.astype(jnp.float32), table_ref[...])
        o_ref[...] = rows * (ids_ref[...] % 2) if scales else rows

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((2048, 128), jnp.float32),
        grid=(8,),
        in_specs=[pl.BlockSpec((256, 1), lambda i: (i, 0)), pl.BlockSpec((32, 128))],
        out_specs=pl.BlockSpec((256, 128), lambda i: (i, 0)),
    )(ids, table)


@pytest.mark.slow
@pytest.mark.parametrize("scales", [False, True])
def test_columns_that_are_repeated_along_the_lanes_stay(scales: bool) -> None:
    """As a row, it would have to become a column, or the matrix transposed: 1.2 to 1.8 times."""
    ids = jax.ShapeDtypeStruct((2048, 1), jnp.int32)
    table = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    function = functools.partial(selected_rows, scales=scales)
    assert pallas_debug.stats(function, ids, table, target="v5e", estimate=False).advice == ()


def _in_blocks(kernel: Any, *arrays: jax.Array, sizes: tuple[int, ...] = ()) -> Any:
    """Every step works on the same blocks, so that computation decides."""
    outs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in sizes or [a.shape for a in arrays[:1]]]
    return pl.pallas_call(
        kernel,
        out_shape=outs,
        grid=(16,),
        in_specs=[pl.BlockSpec(a.shape, lambda i: (0, 0)) for a in arrays],
        out_specs=[pl.BlockSpec(o.shape, lambda i: (0, 0)) for o in outs],
    )(*arrays)


def counts_of_smaller(x: jax.Array, y: jax.Array) -> jax.Array:
    """For each number, how many others are smaller."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        is_less = (x_ref[...] > y_ref[...]).astype(jnp.float32)
        o_ref[...] = jnp.sum(is_less, axis=1, keepdims=True)

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(8,),
        in_specs=[pl.BlockSpec((128, 1), lambda i: (i, 0)), pl.BlockSpec((1, 1024))],
        out_specs=pl.BlockSpec((128, 1), lambda i: (i, 0)),
    )(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_a_row_that_is_compared_with_a_column_stays(target: str) -> None:
    """As a column, it would be repeated along the lanes: 4,508 instead of 2,806 cycles on v5e."""
    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 1), (1, 1024)))
    assert pallas_debug.stats(counts_of_smaller, x, y, target=target, estimate=False).advice == ()


def layer_norm_gradient(x: jax.Array, dy: jax.Array) -> Any:
    def kernel(x_ref: Any, dy_ref: Any, dx_ref: Any, dscale_ref: Any) -> None:
        dscale_ref[...] = jnp.zeros_like(dscale_ref)

        @pl.loop(0, x_ref.shape[0] // 8)
        def _(i: Any) -> None:
            at = pl.ds(pl.multiple_of(i * 8, 8), 8)
            product = x_ref[at, :] * dy_ref[at, :]
            mean = jnp.mean(product, axis=1, keepdims=True)
            dx_ref[at, :] = dy_ref[at, :] - x_ref[at, :] * mean
            dscale_ref[...] += jnp.sum(product, axis=0, keepdims=True)

    return _in_blocks(kernel, x, dy, sizes=(x.shape, (1, x.shape[1])))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_sums_of_rows_beside_those_of_lanes_stay(target: str) -> None:
    """Each iteration waits for the mean: to accumulate whole vectors takes 1 % longer."""
    args = (jax.ShapeDtypeStruct((128, 512), jnp.float32),) * 2
    assert (
        pallas_debug.stats(layer_norm_gradient, *args, target=target, estimate=False).advice == ()
    )


def stencil(x: jax.Array) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[:256, :] + 2.0 * x_ref[1:257, :] + x_ref[2:258, :]

    return _in_blocks(kernel, x, sizes=((256, x.shape[1]),))[0]


@pytest.mark.slow
def test_slices_that_begin_elsewhere_stay() -> None:
    """By pltpu.roll and masks they take as long."""
    x = jax.ShapeDtypeStruct((264, 256), jnp.float32)
    assert pallas_debug.stats(stencil, x, target="v5e", estimate=False).advice == ()


def states(x: jax.Array) -> jax.Array:
    def kernel(x_ref: Any, out_ref: Any, state_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)

        state_ref[...] = jnp.tanh(state_ref[...] + x_ref[...])
        out_ref[...] = state_ref[...]

    block = pl.BlockSpec((64, 512), lambda i: (0, 0))
    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(16,),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((64, 512), jnp.float32)],
    )(x)
    return result


@pytest.mark.slow
def test_a_state_that_is_kept_and_written_stays() -> None:
    """The next step goes on from what is copied to the output."""
    x = jax.ShapeDtypeStruct((64, 512), jnp.float32)
    assert pallas_debug.stats(states, x, target="v5e", estimate=False).advice == ()


def heads_of_64_lanes(x: jax.Array) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        x = x_ref[...]
        out_ref[...] = x + 0.5 * jnp.concatenate([-x[:, 32:], x[:, :32]], axis=1)

    return _in_blocks(kernel, x)[0]


@pytest.mark.slow
def test_halves_of_half_a_register_stay() -> None:
    """To rotate 64 of 128 lanes by 32 takes 171 % of the cycles."""
    x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
    assert pallas_debug.stats(heads_of_64_lanes, x, target="v5e", estimate=False).advice == ()


def linear_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, carries: bool) -> Any:
    """What each row adds to a state, which the next row reads."""

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, state_ref: Any) -> None:
        state_ref[...] = jnp.zeros_like(state_ref)

        def step(t: Any, state: Any) -> Any:
            before = state if carries else state_ref[...]
            after = before + k_ref[t][:, None] * v_ref[pl.ds(t, 1), :]
            if not carries:
                state_ref[...] = after
            out_ref[pl.ds(t, 1), :] = jnp.sum(q_ref[t][:, None] * before, axis=0, keepdims=True)
            return after if carries else state

        lax.fori_loop(0, q.shape[0], step, jnp.zeros_like(state_ref) if carries else 0)

    return _in_blocks(kernel, q, k, v, sizes=(q.shape, (128, 128)))


@pytest.mark.slow
@pytest.mark.parametrize("carries", [False, True])
def test_a_sum_that_each_iteration_reads_is_no_product(carries: bool) -> None:
    """The sum after the last row would not do for those before."""
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    function = functools.partial(linear_attention, carries=carries)
    stats = pallas_debug.stats(function, x, x, x, target="v5e", estimate=False)
    assert "vector-product" not in {advice.kind for advice in stats.advice}


def taps(x: jax.Array, w: jax.Array, *, packed: bool) -> Any:
    """A convolution of 3 taps over 32 channels, by a product for each tap or by one of all."""

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any, taps_ref: Any) -> None:
        total = jnp.zeros(out_ref.shape, jnp.float32)
        for n in range(3):
            at = slice(n * 32, n * 32 + 32)
            rows = x_ref[0, n : n + 16, n : n + 64, :].reshape(1024, 32)
            if packed:
                taps_ref[:, at] = rows
            else:
                total += jnp.dot(rows, w_ref[at, :], preferred_element_type=jnp.float32)
        if packed:
            total = jnp.dot(taps_ref[...], w_ref[...], preferred_element_type=jnp.float32)
        out_ref[...] = total

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1024, 128), jnp.float32),
        grid=(16,),
        in_specs=[pl.BlockSpec(x.shape, lambda i: (0, 0, 0, 0)), pl.BlockSpec(w.shape)],
        out_specs=pl.BlockSpec((1024, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((1024, 96), jnp.bfloat16)],
    )(x, w)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_channels_in_lanes_stay(packed: bool) -> None:
    """A product contracts them, or they become columns of one; its MXU is never idle for long."""
    x = jax.ShapeDtypeStruct((1, 18, 66, 32), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((96, 128), jnp.bfloat16)
    function = functools.partial(taps, packed=packed)
    assert pallas_debug.stats(function, x, w, target="v5e", estimate=False).advice == ()


def nine_products(x: jax.Array, w: jax.Array) -> Any:
    """A convolution of 3 by 3 taps over 128 channels."""

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        total = jnp.zeros((1024, 128), jnp.float32)
        for i, j in itertools.product(range(3), range(3)):
            pixels = x_ref[0, i : i + 32, j : j + 32, :].reshape(1024, 128)
            at = slice((3 * i + j) * 128, (3 * i + j + 1) * 128)
            total += jnp.dot(pixels, w_ref[at, :], preferred_element_type=jnp.float32)
        out_ref[0] = total

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 1024, 128), jnp.float32),
        grid=(8,),
        in_specs=[pl.BlockSpec((1, 34, 34, 128), lambda n: (n, 0, 0, 0)), pl.BlockSpec(w.shape)],
        out_specs=pl.BlockSpec((1, 1024, 128), lambda n: (n, 0, 0)),
    )(x, w)


@pytest.mark.slow
def test_slices_of_an_image_that_are_multiplied_stay() -> None:
    """With three images whose slices are aligned, the kernel computes for 98 % of the cycles."""
    x = jax.ShapeDtypeStruct((8, 34, 34, 128), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((1152, 128), jnp.bfloat16)
    assert pallas_debug.stats(nine_products, x, w, target="v6e", estimate=False).advice == ()


def masked_scores(q: jax.Array, k: jax.Array) -> Any:
    """Scores above the diagonal are masked, and written."""

    def kernel(q_ref: Any, k_ref: Any, out_ref: Any) -> None:
        i, j = pl.program_id(0), pl.program_id(1)
        scores = lax.dot_general(
            *(q_ref[...], k_ref[...], (((1,), (1,)), ((), ()))),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        row = i * 512 + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        column = j * 512 + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        masked = lax.select(column <= row, scores, jnp.full_like(scores, -1e30))
        out_ref[...] = masked.astype(jnp.bfloat16)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16),
        grid=(4, 4),
        in_specs=[
            pl.BlockSpec((512, 128), lambda i, j: (i, 0)),
            pl.BlockSpec((512, 128), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((512, 512), lambda i, j: (i, j)),
    )(q, k)


@pytest.mark.slow
def test_masked_blocks_that_are_written_stay() -> None:
    """Without these steps, their blocks would be left as they are in memory."""
    x = jax.ShapeDtypeStruct((2048, 128), jnp.float32)
    stats = pallas_debug.stats(masked_scores, x, x, target="v5e", estimate=False)
    assert stats.traffic.bound == "compute"
    assert "masked-steps" not in {advice.kind for advice in stats.advice}


def warped(cost: jax.Array) -> jax.Array:
    """Cheapest paths through a table, a row at a time."""

    def kernel(cost_ref: Any, out_ref: Any) -> None:
        column = lax.broadcasted_iota(jnp.int32, (1, 128), 1)

        def row(i: Any, best: jax.Array) -> jax.Array:
            left = jnp.where(column >= 1, pltpu.roll(best, 1, 1), 1e9)
            best = cost_ref[pl.ds(i, 1), :] + jnp.minimum(best, left)
            out_ref[pl.ds(i, 1), :] = best
            return best

        lax.fori_loop(0, 128, row, jnp.zeros((1, 128), jnp.float32))

    return _in_blocks(kernel, cost)[0]


@pytest.mark.slow
def test_rotations_of_what_each_iteration_makes_stay() -> None:
    """Each row adds its costs before the next rotation: no steps that double give the same."""
    cost = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    assert pallas_debug.stats(warped, cost, target="v5e", estimate=False).advice == ()


def stepped(x: jax.Array, w: jax.Array, *, keeps: str) -> jax.Array:
    """A product of one row in each step, with a sum or a state that the steps pass on."""
    steps, _, dim = x.shape

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any, state_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)
            out_ref[...] = jnp.zeros_like(out_ref)

        row = state_ref[...] if keeps == "state" else x_ref[0]
        found = jnp.dot(row.astype(jnp.bfloat16), w_ref[...], preferred_element_type=jnp.float32)
        if keeps == "state":
            state_ref[...] = jnp.tanh(x_ref[0] + found)
            out_ref[0] = state_ref[...]
        else:
            out_ref[0] += found

    own = pl.BlockSpec((1, 1, dim), lambda i: (i, 0, 0))
    one = pl.BlockSpec((1, 1, dim), lambda i: (0, 0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape if keeps == "state" else (1, 1, dim), jnp.float32),
        grid=(steps,),
        in_specs=[own, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=own if keeps == "state" else one,
        scratch_shapes=[pltpu.VMEM((1, dim), jnp.float32)],
    )(x, w)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["state", "sum"])
def test_rows_of_steps_that_need_each_other_stay(keeps: str) -> None:
    """A step multiplies what the one before computed, or adds to its result."""
    x = jax.ShapeDtypeStruct((32, 1, 256), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    function = functools.partial(stepped, keeps=keeps)
    assert pallas_debug.stats(function, x, w, target="v5e", estimate=False).advice == ()


def pairs_of_rows(x: jax.Array, y: jax.Array) -> Any:
    def kernel(x_ref: Any, y_ref: Any, sum_ref: Any, max_ref: Any) -> None:
        products = x_ref[...][:, None, :] * y_ref[...][None, :, :]
        sum_ref[...] = jnp.sum(products, axis=-1)
        max_ref[...] = jnp.max(products, axis=-1)

    return _in_blocks(kernel, x, y, sizes=((32, 128), (32, 128)))


@pytest.mark.slow
def test_pairs_that_are_needed_themselves_stay() -> None:
    """The MXU sums their products, and knows nothing of the largest."""
    args = [jax.ShapeDtypeStruct((n, 128), jnp.float32) for n in (32, 128)]
    stats = pallas_debug.stats(pairs_of_rows, *args, target="v5e", estimate=False)
    assert "broadcast-product" not in {advice.kind for advice in stats.advice}


def turned(x: jax.Array) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...].T

    return _in_blocks(kernel, x, sizes=(x.shape[::-1],))[0]


@pytest.mark.slow
def test_a_transpose_that_is_the_result_stays() -> None:
    """Outside of the kernel, it takes another kernel, and nothing is left of this one."""
    x = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    assert pallas_debug.stats(turned, x, target="v5e", estimate=False).advice == ()


def multiplied(x: jax.Array, w: jax.Array, *, whole: bool) -> jax.Array:
    """A product in few large steps, which fetch a factor twice, or hold it as a whole."""
    rows, columns, size = 512, 1024, 512

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any, total_ref: Any) -> None:
        i, k = pl.program_id(0), pl.program_id(2)

        @pl.when(k == 0)
        def _() -> None:
            total_ref[...] = jnp.zeros_like(total_ref)

        at = pl.ds(pl.multiple_of(i * rows, rows), rows)
        x = x_ref[at, pl.ds(pl.multiple_of(k * size, size), size)] if whole else x_ref[...]
        total_ref[...] += jnp.dot(x, w_ref[...], preferred_element_type=jnp.float32)

        @pl.when(k == pl.num_programs(2) - 1)
        def _() -> None:
            out_ref[...] = total_ref[...].astype(jnp.bfloat16)

    held = pl.BlockSpec(x.shape, lambda i, j, k: (0, 0), pipeline_mode=pl.Buffered(1))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), jnp.bfloat16),
        grid=(x.shape[0] // rows, w.shape[1] // columns, w.shape[0] // size),
        in_specs=[
            held if whole else pl.BlockSpec((rows, size), lambda i, j, k: (i, k)),
            pl.BlockSpec((size, columns), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
    )(x, w)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_a_product_in_few_steps_stays(whole: bool) -> None:
    """Its factors as a whole are fetched before any work: 3 % fewer cycles, not 27 %."""
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    stats = pallas_debug.stats(
        functools.partial(multiplied, whole=whole), x, x, target="v6e", estimate=False
    )
    assert stats.traffic.bound == "memory"
    assert stats.advice == ()


def ranks(x: jax.Array) -> Any:
    """How many elements of a row are larger than each."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        x = x_ref[...]
        out_ref[...] = jnp.sum((x[:, :, None] > x[:, None, :]).astype(jnp.float32), axis=1)

    return _in_blocks(kernel, x)[0]


@pytest.mark.slow
def test_sums_over_the_axis_before_the_last_stay() -> None:
    """What moves on their line is what is repeated, and takes as long if that axis is kept."""
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    assert pallas_debug.stats(ranks, x, target="v5e", estimate=False).advice == ()


def scaled_by_sums(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each step sums its many rows, and multiplies the one that is left."""

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        total = jnp.sum(x_ref[...], axis=0, keepdims=True)
        scale = jnp.dot(total, w_ref[...], precision=lax.Precision.HIGHEST)
        out_ref[...] = jnp.tanh(x_ref[...] * scale)

    block = pl.BlockSpec((256, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[block, pl.BlockSpec(w.shape, lambda i: (0, 0))],
        out_specs=block,
    )(x, w)


@pytest.mark.slow
def test_a_product_of_one_row_beside_work_on_many_stays() -> None:
    """More rows in a step take longer, whatever the product takes."""
    args = [jax.ShapeDtypeStruct((n, 128), jnp.float32) for n in (1024, 128)]
    stats = pallas_debug.stats(scaled_by_sums, *args, target="v6e", estimate=False)
    assert "thin-steps" not in {advice.kind for advice in stats.advice}


def added_to_rows(ids: jax.Array, x: jax.Array, *, reads: bool) -> jax.Array:
    """Sums of rows by a table; or each row is scaled by the sum that was there."""

    def kernel(ids_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, x_ref.shape[0])
        def _(i: Any) -> None:
            at, row = pl.ds(ids_ref[i], 1), x_ref[pl.ds(i, 1), :]
            o_ref[at, :] += row * jnp.tanh(o_ref[at, :]) if reads else row

    rows = 64 if reads else 512
    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, x.shape[1]), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(x.shape, lambda i, ids: (0, 0))],
            out_specs=pl.BlockSpec((rows, x.shape[1]), lambda i, ids: (0, 0)),
        ),
    )(ids, x)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
def test_rows_that_are_added_to_many_or_read_stay(reads: bool) -> None:
    """A product with a one-hot matrix of 512 by 512 takes 83 % of the cycles on v5e."""
    args = (jax.ShapeDtypeStruct((512,), jnp.int32), jax.ShapeDtypeStruct((512, 256), jnp.float32))
    function = functools.partial(added_to_rows, reads=reads)
    assert pallas_debug.stats(function, *args, target="v5e", estimate=False).advice == ()


def nearest(x: jax.Array, *, keeps: bool | None, width: int = 256) -> jax.Array:
    """Each iteration finds the largest value of its lanes, and goes on from it or stores it."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        def later(i: Any, carried: Any) -> Any:
            highest, place = carried
            values = x_ref[:, pl.ds(pl.multiple_of(i * width, width), width)]
            own = jnp.max(values, axis=1, keepdims=True)
            at = jnp.argmax(values, axis=1, keepdims=True).astype(jnp.int32)
            if keeps:
                o_ref[pl.ds(pl.multiple_of(i * 64, 64), 64), :] = jnp.broadcast_to(at, (64, 128))
            elif keeps is not None:
                own = own * (place + 1).astype(jnp.float32)
            return jnp.maximum(highest, own), jnp.where(own > highest, at, place)

        first = jnp.full((64, 1), -jnp.inf), jnp.zeros((64, 1), jnp.int32)
        _, place = lax.fori_loop(0, 8, later, first)
        o_ref[:64, :] = jnp.broadcast_to(place, (64, 128))

    result: jax.Array = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((512, 128), jnp.int32)
    )(x)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
def test_places_that_each_iteration_needs_stay(keeps: bool) -> None:
    x = jax.ShapeDtypeStruct((64, 2048), jnp.float32)
    function = functools.partial(nearest, keeps=keeps)
    assert pallas_debug.stats(function, x, target="v5e", estimate=False).advice == ()


@pytest.mark.slow
def test_places_in_more_values_than_fit_in_registers_stay() -> None:
    """Kept elementwise, 64 rows of 512 columns take 111 % of the cycles on v4."""
    x = jax.ShapeDtypeStruct((64, 4096), jnp.float32)
    function = functools.partial(nearest, keeps=None, width=512)
    assert pallas_debug.stats(function, x, target="v4", estimate=False).advice == ()
