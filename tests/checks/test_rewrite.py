"""Replay of a kernel with a visitor that adds nothing, which must reproduce the kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.interpreters import mlir
from jax._src.pallas import pallas_call
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxprs import rewrite


@pytest.fixture
def replayed() -> Iterator[list[str]]:
    """Every kernel is replayed before it is lowered; the list has what was entered, in order."""
    entry = mlir._lowerings[pallas_call.pallas_call_p]
    seen: list[str] = []

    class Watch(rewrite.Visitor):
        def before(self, eqn: Any, inputs: Any, place: rewrite.ProgramPoint) -> None:
            seen.append(eqn.primitive.name)

    def rule(context: Any, *nodes: Any, **params: Any) -> Any:
        jaxpr, mapping = params["jaxpr"], params["grid_mapping"]

        def body(*refs: Any) -> list[Any]:
            rewrite.replay(jaxpr, refs, Watch())
            return []

        with mapping.trace_env():
            traced, consts = rewrite.trace(body, [v.aval for v in jaxpr.invars], jaxpr.debug_info)
        assert not consts
        return entry.rule(context, *nodes, **{**params, "jaxpr": traced})

    mlir._lowerings[pallas_call.pallas_call_p] = dataclasses.replace(entry, rule=rule)
    yield seen
    mlir._lowerings[pallas_call.pallas_call_p] = entry


def everything(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    """Loops with static and traced bounds, a branch, a switch, a scope, a nested jit."""
    acc_ref[...] = jnp.zeros_like(acc_ref)

    def static(i: Any, total: Any) -> Any:
        acc_ref[...] += x_ref[pl.ds(i, 8), :]
        return total + i

    total = jax.lax.fori_loop(0, 4, static, jnp.int32(0))
    total = jax.lax.fori_loop(0, total, lambda i, t: t + i, total)
    total = jax.lax.while_loop(lambda t: t < 100, lambda t: t * 2, total)

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        acc_ref[...] *= 2.0

    scale = jax.lax.switch(pl.program_id(0) % 3, [lambda: 1.0, lambda: 2.0, lambda: 3.0])

    def scoped(tile_ref: Any) -> None:
        tile_ref[...] = acc_ref[...] + jnp.float32(total)
        o_ref[...] = jax.nn.silu(tile_ref[...]) * scale

    pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.float32))


def run(mode: Any) -> np.ndarray:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((16, 128), np.float32))
    with pltpu.force_tpu_interpret_mode(mode):
        call = pl.pallas_call(
            everything,
            out_shape=jax.ShapeDtypeStruct((24, 128), jnp.float32),
            grid=(3,),
            in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )
        return np.asarray(jax.jit(lambda x: call(x))(x))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, pltpu.InterpretParams()], ids=["hlo", "tpu"])
def test_values_stay(mode: Any, request: pytest.FixtureRequest) -> None:
    expected = run(mode)
    seen = request.getfixturevalue("replayed")
    np.testing.assert_array_equal(run(mode), expected)
    assert {"scan", "while", "cond", "run_scoped", "swap", "get"} <= set(seen)


def test_steps_grow_and_loops_are_told(replayed: list[str]) -> None:
    places: list[rewrite.ProgramPoint] = []

    class Places(rewrite.Visitor):
        def before(self, eqn: Any, inputs: Any, place: rewrite.ProgramPoint) -> None:
            places.append(place)

    def function(x: Any) -> Any:
        return jax.lax.fori_loop(
            0, 3, lambda i, t: jax.lax.fori_loop(0, 2, lambda j, u: u + j, t), x
        )

    jaxpr = jax.make_jaxpr(function)(jnp.int32(1))
    opened, _ = jaxcompat.opened(jaxpr)
    jax.make_jaxpr(lambda x: rewrite.replay(opened, [x], Places()))(jnp.int32(1))
    assert max(len(place.loops) for place in places) == 2
    assert [place.step for place in places] == sorted(place.step for place in places)
    inner = next(place for place in places if len(place.loops) == 2)
    assert inner.loops[0].begins < inner.loops[1].begins <= inner.step
