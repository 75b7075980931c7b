"""One compilation shared by the threads of a kernel in TPU interpret mode."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic.interpret import thread_map
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret.extend import threads
from pallas_debug.session import Options, Session


def add_one(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


def on_two_cores(x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    result: jax.Array = pl.pallas_call(
        add_one,
        out_shape=x,
        grid=(4,),
        in_specs=[block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)
    return result


@pytest.mark.slow
def test_the_body_is_compiled_once_for_all_threads_and_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced, ran = [], []
    evaluate, run = threads._evaluate, threads.run_jaxpr
    monkeypatch.setattr(threads, "_evaluate", lambda *a: (traced.append(1), evaluate(*a))[1])
    monkeypatch.setattr(
        threads, "run_jaxpr", lambda *a: (ran.append(threading.get_ident()), run(*a))[1]
    )
    by_jax = thread_map._run_jaxpr
    x = jnp.arange(32 * 128, dtype=jnp.float32).reshape(32, 128)
    races = "tpu,detect_races,num_cores_or_threads=2"
    with Session(Options(interpret=races), runs=True) as session:
        launch = jax.jit(on_two_cores)
        for _ in range(2):
            assert (launch(x) == x + 1).all()
        session.wait_for_runs()
    assert not session.observer.findings
    assert len(ran) == 4
    assert len(traced) == 1
    assert thread_map._run_jaxpr is by_jax
    assert not threads._compiled


def test_what_the_body_raises_reaches_every_thread() -> None:
    """Also the second one, which waited for the first to compile it."""
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(jnp.float32(0))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"safe_map|length mismatch|argument"):
            threads.run_jaxpr(jaxpr.jaxpr, [], jnp.float32(0), jnp.float32(0))
    threads.forget()
