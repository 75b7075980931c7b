"""Which axes of the grid the work of each line grows along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.profile.advice.collect import subject_of
from pallas_debug.profile.advice.growth import growth_of
from pallas_debug.profile.advice.pipelines import WorkGrowth, _Copies
from pallas_debug.profile.peaks import peaks_of
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile


def attention(q: jax.Array, k: jax.Array, *, outer: int | None) -> jax.Array:
    """Scores follow rows and columns, the sum of their products only the rows."""

    def kernel(q_ref: Any, k_ref: Any, o_ref: Any, total_ref: Any) -> None:
        q, k = q_ref[...].reshape(128, 128), k_ref[...].reshape(256, 128)
        scores = jax.lax.dot_general(
            q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        row = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        column = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.exp(jnp.where(row > column, scores, -1.0))
        total_ref[...] = jnp.tanh(total_ref[...])
        total_ref[...] += jnp.dot(scores, k, preferred_element_type=jnp.float32)
        o_ref[...] = total_ref[...].reshape(o_ref.shape)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
        grid=(2, 2, 2),
        in_specs=[
            pl.BlockSpec((outer, 128, 128), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((outer, 256, 128), lambda h, i, j: (h, j, 0)),
        ],
        out_specs=pl.BlockSpec((outer, 128, 128), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)],
    )(q, k)


def grown(function: Callable[..., Any], *args: jax.ShapeDtypeStruct, to: Path) -> WorkGrowth:
    (dump,) = pallas_debug.dump(function, *args, targets="v5e", to=to, stages="bundles")
    (stored,) = (k for k in open_dumps(to).kernels() if k.name == dump.name)
    found = read_profile(stored, stored.target("v5e"))
    assert found is not None
    subject = subject_of(found.profile)
    assert subject is not None
    assert subject.blocks is not None
    return growth_of(subject, subject.blocks)


@pytest.mark.slow
@pytest.mark.parametrize("outer", [1, None])
def test_what_is_added_to_does_not_grow_with_what_is_added(
    outer: int | None, tmp_path: Path
) -> None:
    def function(q: jax.Array, k: jax.Array) -> jax.Array:
        return attention(q, k, outer=outer)

    args = [jax.ShapeDtypeStruct((2, n, 128), jnp.float32) for n in (256, 512)]
    growth = grown(function, *args, to=tmp_path)
    assert set(growth.shares) <= {(1,), (2,), (1, 2)}
    assert sum(growth.shares.values()) == pytest.approx(1.0)
    # The tanh of the total, and the exponential of the scores.
    assert growth.units["EUP"].keys() == {(1,), (1, 2)}
    assert growth.share({}, 1e9) == pytest.approx(1.0)
    assert growth.share({1: 2}, 1e9) == pytest.approx(1.0, abs=0.1)
    least = growth.shares[1,] / 4
    assert growth.share({2: 4}, 1e9) <= 1.0 - 3 * least + 1e-6
    # Of two products at the chip's peak, most is in delays, which no unit's column counts.
    peaks = peaks_of("v5e")
    assert peaks is not None
    flops = 8 * 2 * 2 * 128 * 256 * 128
    cycles = flops / peaks.flops["bf16"] * peaks.clock
    assert sum(growth.units["MXU"].values()) >= 0.99 * cycles


@pytest.mark.slow
def test_scores_of_a_block_with_itself_grow_with_its_square(tmp_path: Path) -> None:
    def chunks(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            x = x_ref[...]
            scores = jax.lax.dot_general(x, x, (((1,), (1,)), ((), ())))
            weights = jnp.exp(scores)
            total = jnp.dot(weights, x)
            o_ref[...] = jnp.tanh(total)

        chunk = pl.BlockSpec((64, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, out_shape=x, grid=(16,), in_specs=[chunk], out_specs=chunk)(x)

    growth = grown(chunks, jax.ShapeDtypeStruct((1024, 128), jnp.float32), to=tmp_path)
    # Scores and their exponential and product by the square; the tanh, loads and stores do not.
    assert growth.shares.keys() == {(0,), (0, 0)}
    assert growth.units["EUP"].keys() == {(0,), (0, 0)}
    assert growth.units["MXU"].keys() == {(0, 0)}
    square = growth.shares[0, 0]
    assert growth.share({0: 4}, 1e9) == pytest.approx(4 * square + (1 - square))


@pytest.mark.slow
def test_a_triangle_that_is_multiplied_grows_with_its_square(tmp_path: Path) -> None:
    """Columns of a mask that nothing else is used with are as many as the rows they multiply."""

    def sums(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            row = jax.lax.broadcasted_iota(jnp.int32, (64, 64), 0)
            column = jax.lax.broadcasted_iota(jnp.int32, (64, 64), 1)
            triangle = jnp.where(row >= column, 1.0, 0.0)
            o_ref[...] = jnp.dot(triangle, x_ref[...], preferred_element_type=jnp.float32)

        chunk = pl.BlockSpec((64, 128), lambda i, j: (i, j))
        return pl.pallas_call(kernel, out_shape=x, grid=(8, 4), in_specs=[chunk], out_specs=chunk)(
            x
        )

    growth = grown(sums, jax.ShapeDtypeStruct((512, 512), jnp.float32), to=tmp_path)
    assert growth.units["MXU"].keys() == {(0, 0, 1)}


@pytest.mark.slow
def test_a_line_of_two_sizes_grows_in_part(tmp_path: Path) -> None:
    def function(x: jax.Array) -> jax.Array:
        """A sum over blocks of columns, which is rescaled on the line that adds to it."""

        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.tanh(o_ref[...]) + jnp.sum(jnp.exp(x_ref[...]), axis=1, keepdims=True)

        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((128, 1), jnp.float32),
            grid=(4,),
            in_specs=[pl.BlockSpec((128, 128), lambda i: (0, i))],
            out_specs=pl.BlockSpec((128, 1), lambda i: (0, 0)),
        )(x)

    growth = grown(function, jax.ShapeDtypeStruct((128, 512), jnp.float32), to=tmp_path)
    assert growth.units["EUP"].keys() == {(), (0,)}
    assert growth.shares[()] > 0.2


def test_copies_wait_only_for_those_beside_them() -> None:
    """Results that are written after every fourth step share HBM with the fetches of one step."""
    fetched = _Copies(latency=100, count=64, size=64_000)
    written = _Copies(latency=100, count=16, size=16_000)
    assert written.waiting(2_100, fetched, 1.0) == 0.0
    assert written.waiting(1_000, fetched, 1.0) == 16 * 550
    # Fetches share it with a fourth of a write-back each.
    assert fetched.waiting(1_000, written, 1.0) == 64 * 175
    assert _Copies(latency=100).waiting(1_000, fetched, 1.0) == 0.0


@pytest.mark.slow
def test_products_take_cycles_at_the_peak(tmp_path: Path) -> None:
    """Units that are busy in a delay are not in the table of used units."""

    def product(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.dot(x_ref[...], x_ref[...], preferred_element_type=jnp.float32)

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)

    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    (dump,) = pallas_debug.dump(product, x, targets="v5e", to=tmp_path, stages="bundles")
    stored = open_dumps(tmp_path).find(dump.name)
    found = read_profile(stored, stored.target("v5e"))
    assert found is not None
    subject = subject_of(found.profile)
    assert subject is not None
    # 4 units of 128 by 128 multiply-adds per cycle, by the published peak of 197e12 operations.
    assert subject.matrix_cycles == pytest.approx(512**3 / 4 / 128**2, rel=0.01)
