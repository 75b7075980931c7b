"""Interpret mode `auto`: kernels that neither of jax's interpreters runs correctly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import sharded

import pallas_debug
from pallas_debug.session import Options, Session

ANY, SMEM = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.SMEM)
SEMAPHORE = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def start(x_hbm: Any, o_hbm: Any, sem: Any) -> None:
    pltpu.make_async_copy(x_hbm, o_hbm, sem).start()


@called(like=0, in_specs=[ANY, ANY, SEMAPHORE], out_specs=ANY, input_output_aliases={1: 0})
def done(x_hbm: Any, y_hbm: Any, sem: Any, o_hbm: Any) -> None:
    pltpu.make_async_copy(x_hbm, y_hbm, sem).wait()


def hand_on(x: jax.Array) -> Any:
    """Copies x, in two kernels that share a semaphore."""
    out = jax.typeof(x), pltpu.SemaphoreType.DMA(())
    starts = called(out, in_specs=[ANY], out_specs=(ANY, SEMAPHORE))(start)
    return done(x, *starts(x))


def noise(x_ref: Any, o_ref: Any) -> None:
    pltpu.prng_seed(3)
    o_ref[...] = x_ref[...] * 0 + (pltpu.prng_random_bits((8, 128)) & 255).astype(jnp.float32)


def noisy(x: jax.Array, **options: Any) -> jax.Array:
    return pl.pallas_call(noise, out_shape=jax.typeof(x), **options)(x)


def ran(
    function: Callable[..., Any], *args: Any, mode: str = "auto", **options: Any
) -> tuple[Any, list[str]]:
    """The result of a function, and what a session says of how its kernels run."""
    messages: list[str] = []
    with Session(Options(interpret=mode, chip="v5e", **options), inform=messages.append) as session:
        result = jax.block_until_ready(function(*args))
        session.wait_for_runs()
    assert {k.digest for k in session.kernels} <= session.launched
    return result, messages


def test_semaphores_that_kernels_hand_on() -> None:
    result, messages = ran(jax.jit(hand_on), X)
    np.testing.assert_array_equal(result, X)
    assert messages == []


@pytest.mark.slow
def test_transformations() -> None:
    @called()
    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return hand_on(double(x))

    f.defvjp(lambda x: (f(x), None), lambda _, g: (hand_on(g * 3),))
    (value, grad), _ = ran(jax.jit(jax.value_and_grad(lambda x: f(x).sum())), X)
    np.testing.assert_array_equal(grad, np.full_like(X, 3))
    assert value == X.sum() * 2
    batched, _ = ran(jax.vmap(noisy), jnp.stack([X, X]))
    assert len(np.unique(batched)) > 100
    looped, _ = ran(jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: hand_on(c) + 1, x)), X)
    np.testing.assert_array_equal(looped, X + 3)
    on_machine, _ = ran(lambda x: noisy(x, interpret=True), X)
    assert len(np.unique(on_machine)) > 100


def test_sixty_four_bits() -> None:
    with jax.enable_x64(True):
        x = jnp.arange(8 * 128, dtype="int64").reshape(8, 128) * 2**40
        result, _ = ran(jax.jit(hand_on), x)
    assert result.dtype == "int64"
    np.testing.assert_array_equal(result, x)


def test_shards() -> None:
    result, _ = ran(jax.jit(sharded(hand_on, x=2)), jnp.concatenate([X, -X]))
    np.testing.assert_array_equal(result, np.concatenate([X, -X]))


def test_what_was_traced_before_a_session() -> None:
    block = pl.BlockSpec((4, 128), lambda i, *_: (i, 0))

    @called(prefetch=1, grid=(2,), block=block)
    def counts(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * n_ref[0].astype(jnp.float32)
        n_ref[0] = n_ref[0] + 1

    traced = jax.jit(counts).trace(jnp.array([3]), X)
    with Session(Options(interpret="auto", chip="v5e")):
        result = traced.lower().compile()(jnp.array([3]), X)
    np.testing.assert_array_equal(result, np.concatenate([X[:4] * 3, X[4:] * 4]))


@pytest.mark.slow
def test_check_finds_faults_there() -> None:
    @called()
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(1)
        bits = pltpu.prng_random_bits((8, 128)).astype(jnp.float32)
        o_ref[...] = jnp.sqrt(x_ref[...] - 1) + bits  # of -1

    report, _ = pallas_debug.check(kernel)(X)
    (finding,) = report.findings
    assert str(finding.kind) == "NanProduced"
    assert finding.source.text.endswith("# of -1")
    assert report.not_checked == ()
