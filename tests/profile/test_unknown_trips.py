"""Advice on loops whose number of iterations is not constant."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug


def sums_of_exponentials(length: jax.Array, x: jax.Array, *, columns: int, rows: int) -> jax.Array:
    """The logarithms of sums of exponentials over a row's first `length` columns."""

    def kernel(length_ref: Any, x_ref: Any, out_ref: Any) -> None:
        def step(j: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            highest, total = state
            start = pl.multiple_of(j * columns, columns)
            column = start + lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
            part = jnp.where(column < length_ref[0], x_ref[:, pl.ds(start, columns)], -1e30)
            top = jnp.maximum(highest, jnp.max(part, axis=1, keepdims=True))
            added = jnp.sum(jnp.exp(part - top), axis=1, keepdims=True)
            return top, total * jnp.exp(highest - top) + added

        column = jnp.zeros((rows, 1), jnp.float32)
        count = (length_ref[0] + columns - 1) // columns
        highest, total = lax.fori_loop(0, count, step, (column - 1e30, column))
        out_ref[...] = jnp.broadcast_to(highest + jnp.log(total), out_ref.shape)

    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 128), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // rows,),
            in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i, *_: (i, 0))],
            out_specs=pl.BlockSpec((rows, 128), lambda i, *_: (i, 0)),
        ),
    )(length, x)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("columns, is_advised", [(128, True), (512, False)])
def test_wider_slices_are_advised_for_each_iteration(columns: int, is_advised: bool) -> None:
    length, x = (
        jax.ShapeDtypeStruct(shape, kind)
        for shape, kind in (((1,), jnp.int32), ((256, 4096), jnp.float32))
    )
    function = functools.partial(sums_of_exponentials, columns=columns, rows=64)
    stats = pallas_debug.stats(function, length, x, target="v5e", estimate=False)
    assert stats.cycles.total.value is None
    assert [advice.kind for advice in stats.advice] == ["narrow-slices"] * is_advised
    for advice in stats.advice:
        assert advice.message.startswith("each iteration reduces 128 columns over the lanes")
        assert "512 columns in each iteration, in 1/4 as many iterations" in advice.remedy
        assert "mask the columns past the bound" in advice.remedy
        names = {evidence.name for evidence in advice.evidence}
        assert not any("iterations in" in name or "share" in name for name in names)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, columns: int) -> jax.Array:
    """Attention whose number of slices depends on the grid point."""

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        first = pl.program_id(0) * 256

        def step(j: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            highest, total, out = state
            keys = pl.ds(pl.multiple_of(j * columns, columns), columns)
            scores = jnp.dot(q_ref[...], k_ref[keys, :].T, preferred_element_type=jnp.float32)
            row = first + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            column = j * columns + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(column <= row, scores, -1e30)
            top = jnp.maximum(highest, jnp.max(scores, axis=1, keepdims=True))
            p, scale = jnp.exp(scores - top), jnp.exp(highest - top)
            product = jnp.dot(
                p.astype(jnp.bfloat16), v_ref[keys, :], preferred_element_type=jnp.float32
            )
            return top, scale * total + jnp.sum(p, axis=1, keepdims=True), scale * out + product

        column = jnp.zeros((256, 1), jnp.float32)
        state = column - 1e30, column, jnp.zeros(out_ref.shape, jnp.float32)
        count = (first + 256 + columns - 1) // columns
        _, total, out = lax.fori_loop(0, count, step, state)
        out_ref[...] = out / total

    whole = pl.BlockSpec(k.shape, lambda i: (0, 0))
    rows = pl.BlockSpec((256, 128), lambda i: (i, 0))
    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
        grid=(q.shape[0] // 256,),
        in_specs=[rows, whole, whole],
        out_specs=rows,
    )(q, k, v)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_slices_up_to_the_diagonal_take_as_long_as_advised(target: str) -> None:
    args = (jax.ShapeDtypeStruct((2048, 128), jnp.bfloat16),) * 3
    narrow, wide = (
        pallas_debug.stats(
            functools.partial(causal_attention, columns=n), *args, target=target, estimate=False
        )
        for n in (128, 512)
    )
    assert wide.advice == ()
    (advice,) = narrow.advice
    assert advice.kind == "narrow-slices"
    assert advice.message.startswith("each iteration, 9 in an average grid step, reduces 128")
    promised = {e.name: e.figure.value for e in advice.evidence}
    each = promised["cycles of wider ones for as many"]
    assert each is not None
    runs = (9 + 3 / 2) / 4  # of four times as many columns, rounded up
    assert runs * 4 * each == pytest.approx(wide.traffic.compute_per_step.value, rel=0.25)
