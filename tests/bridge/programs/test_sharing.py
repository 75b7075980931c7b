"""Programs compiled once for units that compute the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import core as jax_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded

from pallas_debug.bridge.jaxcompat import opened
from pallas_debug.bridge.jaxprs import likeness
from pallas_debug.bridge.programs import numerics, units
from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine import run

F32, I32 = jnp.float32, jnp.int32
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128) / 100


def key(function: Callable[..., Any], *args: Any) -> Any:
    closed = jax.make_jaxpr(function)(*args)
    jaxpr, _ = opened(closed)
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    eqns = []
    for eqn in jaxpr.eqns:
        atoms = [
            jax_core.Literal(known[atom], atom.aval)
            if not isinstance(atom, jax_core.Literal) and atom in known
            else atom
            for atom in eqn.invars
        ]
        eqns.append(eqn.replace(invars=atoms))
    return likeness.key_of(eqns, jaxpr.invars, jaxpr.outvars)


def nested(x: jax.Array, *, step: float) -> jax.Array:
    return lax.fori_loop(0, 3, lambda _, c: jnp.where(c > 1, jnp.sin(c), step), x)


def test_equal_computations_have_one_key_and_others_do_not() -> None:
    functions: list[Callable[..., Any]] = [
        lambda x: x * 0.0,
        lambda x: x * -0.0,
        lambda x: x * 1.0,
        lambda x: x + 1.0,
        lambda x: (x + 1.0) * x,
        lambda x: (x + 1.0) * (x + 1.0),
        lambda x: x.astype(I32),
        lambda x: x.astype(bool),
        lambda x: lax.dot(x, x.T, precision="highest"),
        lambda x: lax.dot(x, x.T),
        lambda x: x + np.arange(128, dtype=np.float32),
        lambda x: x - np.arange(1, 129, dtype=np.float32),
        functools.partial(nested, step=0.5),
        functools.partial(nested, step=0.25),
    ]
    keys = [key(function, X) for function in functions]
    assert None not in keys
    assert keys == [key(function, X) for function in functions]
    assert len(set(keys)) == len(functions)
    # Of another shape or type.
    assert key(functions[3], X) != key(functions[3], X[:4])
    assert key(functions[3], X) != key(functions[3], X.astype(np.float16))


def test_a_large_constant_is_not_compared() -> None:
    constant = np.arange(2 * 8 * 128, dtype=np.float32).reshape(2, 8, 128)
    assert key(lambda x: x + constant, X) is None


def unrolled(x_ref: Any, o_ref: Any) -> None:
    for i in range(4):
        o_ref[pl.ds(2 * i, 2)] = jnp.exp(x_ref[pl.ds(2 * i, 2)]) * 2 + 1


def units_of(function: Callable[..., Any]) -> list[Any]:
    (program,) = decoded(function, (X,)).programs()
    return [step for step in program.all_steps() if isinstance(step, ir.Compute)]


def test_an_unrolled_loop_is_compiled_once() -> None:
    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(unrolled, jax.typeof(x))(x)

    found = units_of(call)
    assert len(found) == 4
    assert len({id(step.unit.compiled) for step in found}) == 1
    assert len({id(numerics.watch(step)) for step in found}) == 1
    done = run.run(decoded(call, (X,)), [[X]])
    np.testing.assert_allclose(done.results[0][0], np.exp(X) * 2 + 1, rtol=1e-6)


def test_an_equation_that_jax_can_only_compile_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        units.jax, "jit", lambda function, jit=jax.jit: made.append(function) or jit(function)
    )
    for _ in range(3):
        # Of another size than other tests use, so that none of them has made the program.
        jaxpr, _consts = opened(jax.make_jaxpr(lambda x: pltpu.bitcast(x, I32))(X[:, :56]))
        (eqn,) = jaxpr.eqns
        (result,) = units.bound(eqn, [X[:, :56]])
        np.testing.assert_array_equal(result, X[:, :56].view(np.int32))
    assert len(made) == 1
