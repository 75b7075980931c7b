"""Interpret mode `auto` on the machine: kernels that neither of jax's interpreters runs correctly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec

import pallas_debug
from pallas_debug.errors import InterpretModeError
from pallas_debug.session import Options, Session

ANY, SMEM = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.SMEM)
SEMAPHORE = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def start(x_hbm: Any, o_hbm: Any, sem: Any) -> None:
    pltpu.make_async_copy(x_hbm, o_hbm, sem).start()


def done(x_hbm: Any, y_hbm: Any, sem: Any, o_hbm: Any) -> None:
    pltpu.make_async_copy(x_hbm, y_hbm, sem).wait()


def hand_on(x: jax.Array) -> Any:
    """Copies x, in two kernels that share a semaphore."""
    aval = jax.typeof(x)
    y, sem = pl.pallas_call(
        start,
        in_specs=[ANY],
        out_specs=(ANY, SEMAPHORE),
        out_shape=(aval, pltpu.SemaphoreType.DMA(())),
    )(x)
    return pl.pallas_call(
        done,
        in_specs=[ANY, ANY, SEMAPHORE],
        out_specs=ANY,
        out_shape=aval,
        input_output_aliases={1: 0},
    )(x, y, sem)


def uniform(key_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jax.random.uniform(key_ref[...], (8, 128))  # the key


def uniform_of(seed: int) -> Any:
    key = pltpu.to_pallas_key(jax.random.key(seed))
    aval = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return pl.pallas_call(uniform, in_specs=[SMEM], out_shape=aval)(key)


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
    hosted = {sentence.split("`")[1] for sentence in messages}
    assert {k.name for k in session.kernels if k.digest in session.launched} >= hosted
    return result, messages


def test_semaphores_that_kernels_hand_on() -> None:
    result, message = ran(jax.jit(hand_on), X)
    np.testing.assert_array_equal(result, X)
    assert message == [
        f"kernel `{name}` runs on the kernel machine: it takes or returns the semaphores sem, but "
        "jax's interpreters free semaphores at the end of a kernel"
        for name in ("start", "done")
    ]


@pytest.mark.slow
def test_keys_and_random_bits_are_those_of_the_machine() -> None:
    for function, args, why in (
        (uniform_of, (3,), "jax's interpreters have no keys of the TPU ("),
        (noisy, (X,), "the random bits of jax's TPU interpret mode are zeros ("),
    ):
        result, (message,) = ran(function, *args)
        expected, _ = ran(function, *args, mode="machine")
        np.testing.assert_array_equal(result, expected)
        assert len(np.unique(result)) > 100
        name = "noise" if function is noisy else "uniform"
        assert message.startswith(f"kernel `{name}` runs on the kernel machine: {why}{__file__}:")


@pytest.mark.slow
def test_transformations() -> None:
    """And kernels next to it run in HLO interpret mode, or where their code says."""

    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return hand_on(pl.pallas_call(double, out_shape=jax.typeof(x))(x))

    f.defvjp(lambda x: (f(x), None), lambda _, g: (hand_on(g * 3),))
    (value, grad), message = ran(jax.jit(jax.value_and_grad(lambda x: f(x).sum())), X)
    np.testing.assert_array_equal(grad, np.full_like(X, 3))
    assert value == X.sum() * 2
    assert len(message) == 2
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
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    f = jax.shard_map(hand_on, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    result, _ = ran(jax.jit(f), jnp.concatenate([X, -X]))
    np.testing.assert_array_equal(result, np.concatenate([X, -X]))


def test_what_was_traced_before_a_session() -> None:
    """It is too late for TPU interpret mode, which has to be chosen during tracing."""

    def counts(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * n_ref[0].astype(jnp.float32)
        n_ref[0] = n_ref[0] + 1

    block = pl.BlockSpec((4, 128), lambda i, *_: (i, 0))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[block], out_specs=block
    )
    call = pl.pallas_call(counts, grid_spec=grid, out_shape=jax.typeof(X))
    traced = jax.jit(call).trace(jnp.array([3]), X)
    with Session(Options(interpret="auto", chip="v5e")):
        result = traced.lower().compile()(jnp.array([3]), X)
    np.testing.assert_array_equal(result, np.concatenate([X[:4] * 3, X[4:] * 4]))


def test_what_the_machine_cannot_run_is_refused_with_both_reasons() -> None:
    rows = pl.BlockSpec((pl.BoundedSlice(8), 128), lambda i: (pl.ds(i * 8, 8), 0))
    call = pl.pallas_call(
        noise, out_shape=jax.typeof(X), grid=(1,), in_specs=[rows], out_specs=rows, name="kernel"
    )
    with (
        pytest.raises(InterpretModeError) as caught,
        Session(Options(interpret="auto")) as session,
    ):
        call(X)
    text = str(caught.value)
    assert text.startswith(
        "kernel `kernel` cannot be interpreted: the random bits of jax's TPU interpret mode are "
        f"zeros ({__file__}:"
    )
    assert text.endswith("Run it on a TPU")
    assert "; on the kernel machine: " in text
    assert set(session.observer.refusals) == {"kernel"}


def test_named_tpu_interpret_mode_still_refuses() -> None:
    with pytest.raises(InterpretModeError) as caught, pallas_debug.interpret("tpu"):
        hand_on(X)
    assert "Run it in interpret mode `machine`" in str(caught.value)


@pytest.mark.slow
def test_check_finds_faults_there() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(1)
        bits = pltpu.prng_random_bits((8, 128)).astype(jnp.float32)
        o_ref[...] = jnp.sqrt(x_ref[...] - 1) + bits  # of -1

    report, _ = pallas_debug.check(pl.pallas_call(kernel, out_shape=jax.typeof(X)))(X)
    (finding,) = report.findings
    assert str(finding.kind) == "NanProduced"
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.endswith("# of -1")
    assert report.not_checked == ()
