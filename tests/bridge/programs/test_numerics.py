"""Arithmetic that goes wrong in units of equations: flags, facts, and what is healthy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.instrument import checking
from pallas_debug.bridge.normal_forms import InnerJaxpr
from pallas_debug.bridge.programs import numeric_faults, numerics
from pallas_debug.bridge.programs.numeric_faults import NumericFault
from pallas_debug.bridge.programs.units import Unit

I32, F32, BF16 = jnp.int32, jnp.float32, jnp.bfloat16
INF, NAN = math.inf, math.nan


def unit_of(function: Callable[..., Any], *args: Any) -> Unit:
    """The equations of a function, with its calls inlined, as the decoder inlines them."""
    jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(function)(*args))

    def inlined(*values: Any) -> list[Any]:
        without_checks: Any = checking.Checker((), {}, None)  # type: ignore[arg-type]
        return without_checks.run(InnerJaxpr(jaxpr, consts), values, ())

    flat, consts = jaxcompat.opened(jax.make_jaxpr(inlined)(*args))
    assert not consts
    return Unit(flat.eqns, flat.invars, flat.outvars, [])


def found(function: Callable[..., Any], *args: Any) -> NumericFault | None:
    """The fault in a unit, after the flags said that it is worth asking."""
    unit = unit_of(function, *args)
    outputs, suspicions = numerics.WatchedUnit(unit).run(args)
    for got, want in zip(outputs, jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(
            np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=1e-5
        )
    fault = numeric_faults.division_by_zero(unit, args) or numeric_faults.not_finite(unit, args)
    assert fault is None or suspicions
    return fault


def array(values: Any, dtype: Any) -> jax.Array:
    return jnp.asarray(np.asarray(values), dtype)


def masked_softmax(x: jax.Array) -> jax.Array:
    m = x.max(axis=1, keepdims=True)
    p = jnp.exp(x - m)
    return p / p.sum(axis=1, keepdims=True)


def overflowing_softmax(x: jax.Array) -> jax.Array:
    p = jnp.exp(x)
    return p / p.sum(axis=1, keepdims=True)


FAULTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "inf - inf": (
        masked_softmax,
        (array([[0, 1], [-INF, -INF]], F32),),
        {"trouble": "nan", "operation": "sub", "element": (1, 0)},
    ),
    "exp overflows, and a NaN follows": (
        overflowing_softmax,
        (array([[0, 1], [2, 100]], F32),),
        {"trouble": "infinity", "operation": "exp", "element": (1, 1), "values": (100.0,)},
    ),
    "infinities of both signs, and a NaN follows": (
        lambda x, w: w @ (x * jnp.float32(1e30)),
        (array([[-1e30], [-1e30], [1e30]], F32), array([[1, -1, 1]], F32)),
        {"trouble": "infinity", "operation": "mul", "element": (2, 0)},
    ),
    "0 * -inf": (
        lambda p: -(p * jnp.log(p)).sum(axis=1),
        (array([[0.5, 0.5], [1, 0]], F32),),
        {"trouble": "nan", "operation": "mul", "element": (1, 1), "values": (0.0, -INF)},
    ),
    "0 / 0 is masked, another NaN is not": (
        lambda x, y: jnp.where(y == 0, 0, x / y) + jnp.log(x),
        (array([0, -1, 2], F32), array([0, 1, 1], F32)),
        {"trouble": "nan", "operation": "log", "element": (1,), "values": (-1.0,)},
    ),
    "of two NaNs, the one that is not masked": (
        lambda x, y: jnp.where(y == 0, 0, x / y),
        (array([0, INF, 0], F32), array([0, 1, 0], F32)),
        None,
    ),
    "a product of infinities, beside operands that hold NaN": (
        lambda a, b: a @ b,
        (array([[NAN, 1], [0, 1], [1, 1]], F32), array([[INF, 1], [1, 1]], F32)),
        {
            "trouble": "nan",
            "operation": "dot_general",
            "element": (1, 0),
            "values": (),
            "ranges": ((0.0, 1.0), (1.0, INF)),
            "operands": ("float32[3, 2]", "float32[2, 2]"),
        },
    ),
    "x / 0": (
        lambda x, y: x / y,
        (array([1, 2], F32), array([1, 0], F32)),
        {"trouble": "infinity", "operation": "div", "values": (2.0, 0.0)},
    ),
    "integer division by zero": (
        lambda x, y: lax.div(x, y),
        (array([4, 5], I32), array([2, 0], I32)),
        {"trouble": "division", "operation": "div", "element": (1,), "values": (5, 0)},
    ),
    "unsigned remainder by zero": (
        lambda x, y: lax.rem(x, y),
        (array([4, 5], jnp.uint32), jnp.uint32(0)),
        {"trouble": "division", "operation": "rem", "values": (4, 0)},
    ),
    "float to float16": (
        lambda x: x.astype(jnp.float16),
        (array([1, 7e4, INF], F32),),
        {"trouble": "infinity", "values": (7e4,)},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    function, args, wanted = FAULTS[name]
    fault = found(function, *args)
    if wanted is None:
        assert fault is None
        return
    assert fault is not None
    assert {key: getattr(fault, key) for key in wanted} == wanted


def test_a_division_whose_quotient_is_masked_is_no_fault() -> None:
    x, y = array([7, 5], I32), array([2, 0], I32)
    assert found(lambda x, y: jnp.where(y == 0, 0, lax.div(x, y)), x, y) is None


def test_only_what_can_go_wrong_is_tested() -> None:
    def flags(function: Callable[..., Any], *args: Any) -> list[str]:
        unit = unit_of(function, *args)
        watched = numerics.WatchedUnit(unit)
        watched.run(args)
        return [
            f"{kind} {unit.eqns[n].primitive.name if kind == 'equation' else n}"
            for kind, n in watched.flags
        ]

    x, i = jnp.ones((8, 128)), jnp.int32(3)
    assert flags(lambda x: (x.T, x.max(axis=0)), x) == []
    assert flags(lambda x: jnp.where(x > 0, x, -INF), x) == []
    assert flags(lambda i: jnp.where(i > 0, i, -1), i) == []
    assert flags(lambda x: (x * 2, x.max()), x) == ["output 0"]
    assert flags(lambda i: i * 8, i) == []
    assert flags(lambda i: lax.rem(8, i), i) == ["equation rem"]
    assert flags(lambda a: lax.div(a, 3), jnp.ones(8, I32)) == []


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_element_of_many(bad: float) -> None:
    """XLA vectorises the test of a large array; a maximum, for one, would drop NaNs."""
    x = np.zeros((512, 512), "float32")
    watched = numerics.WatchedUnit(unit_of(lambda x: x * 2, x))
    for place in ((0, 0), (17, 300), (511, 511)):
        x[place] = bad
        assert bool(watched.run([x])[1]) is (bad != -INF)
        x[place] = 0
    assert not watched.run([x])[1]
