"""Transposes that cost nothing, and kernels that are not worth one."""

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


def product(x: jax.Array, w: jax.Array, *, is_transposed: bool) -> jax.Array:
    """The transpose of `x @ w`, of a `w` that is transposed in the kernel or outside of it."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        left = w_ref[...] if is_transposed else w_ref[...].T
        out_ref[...] = jnp.dot(left, x_ref[...].T, preferred_element_type=jnp.float32)

    def whole(shape: tuple[int, ...]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda i: (0, 0))

    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((w.shape[0], x.shape[0]), jnp.float32),
        grid=(16,),
        in_specs=[whole(x.shape), whole(w.shape)],
        out_specs=whole((w.shape[0], x.shape[0])),
    )(x, w)
    return result


@pytest.mark.slow
def test_transposes_beside_those_of_the_mxu_cost_nothing() -> None:
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 256), (256, 256)))
    inside, outside = (
        pallas_debug.stats(product, x, w, is_transposed=is_transposed, target="v6e", estimate=False)
        for is_transposed in (False, True)
    )
    assert (inside.advice, outside.advice) == ((), ())
    assert inside.cycles.total.value == pytest.approx(outside.cycles.total.value, rel=0.02)


def turned(x: jax.Array, w: jax.Array, *, is_turned: bool, steps: int) -> jax.Array:
    """The product of `x` and `w`, of an `x` that is transposed in the kernel or outside of it."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref) -> None:
        left = x_ref[...].T if is_turned else x_ref[...]
        out_ref[...] = jnp.dot(left, w_ref[...], preferred_element_type=jnp.float32)

    def whole(shape: tuple[int, ...]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda i: (0, 0))

    out = x.shape[1 if is_turned else 0], w.shape[1]
    result: jax.Array = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(out, jnp.float32),
        grid=(steps,),
        in_specs=[whole(x.shape), whole(w.shape)],
        out_specs=whole(out),
    )(x, w)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, rows, steps, is_advised",
    [
        ("v5e", 256, 16, True),  # saves 17 % of the computation
        ("v5e", 256, 4, False),  # transposing outside takes most of what it saves
        pytest.param("v6e", 512, 64, True, marks=pytest.mark.slow),  # 11 %
        pytest.param("v6e", 512, 16, False, marks=pytest.mark.slow),  # takes more than it saves
        pytest.param("v6e", 256, 16, False, marks=pytest.mark.slow),  # 7 %
    ],
)
def test_the_mxu_waits_as_long_as_is_said(
    target: str, rows: int, steps: int, is_advised: bool
) -> None:
    columns = {256: 512, 512: 128}[rows]
    x, w = (jax.ShapeDtypeStruct((rows, n), jnp.bfloat16) for n in (rows, columns))
    of = functools.partial(turned, steps=steps)
    inside, outside = (
        pallas_debug.stats(of, x, w, is_turned=is_turned, target=target, estimate=False)
        for is_turned in (True, False)
    )
    assert outside.advice == ()
    assert [advice.kind for advice in inside.advice] == ["transpose"] * is_advised
    for advice in inside.advice:
        stated = next(e.figure.value for e in advice.evidence if e.name.startswith("cycles"))
        one, other = (s.traffic.compute_per_step.value for s in (inside, outside))
        assert stated == pytest.approx(one - other, abs=0.05 * one)


def along_lanes(x: jax.Array, *, also_rows: bool) -> jax.Array:
    """Running sums along the lanes, or rows and columns that are scaled in turn."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        place = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        if also_rows:
            for axis in (1, 0) * 4:
                x = x / jnp.sum(x, axis, keepdims=True)
        else:
            for n in (1, 2, 4, 8, 16, 32, 64):
                x += jnp.where(place >= n, pltpu.roll(x, n, 1), 0)
        o_ref[...] = x

    block = pl.BlockSpec((128, 128), lambda i: (i, 0))
    result: jax.Array = pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 128,), in_specs=[block], out_specs=block
    )(x)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("also_rows", [False, True])
def test_lanes_that_cost_less_than_transposing_or_are_like_rows_stay(also_rows: bool) -> None:
    """Transposed, the running sums take 71 % of the cycles on v5e, without transposing."""
    x = jax.ShapeDtypeStruct((4096, 128), jnp.float32)
    function = functools.partial(along_lanes, also_rows=also_rows)
    assert pallas_debug.stats(function, x, target="v5e", estimate=False).advice == ()
