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
from pallas_debug.bridge.jaxprs import rewrite
from pallas_debug.bridge.normal_forms import InnerJaxpr
from pallas_debug.bridge.programs.arithmetic import (
    numeric_faults,
    numerics,
)
from pallas_debug.bridge.programs.arithmetic.numeric_faults import NumericFault
from pallas_debug.bridge.programs.units import Unit

I8, I32, F32, BF16 = jnp.int8, jnp.int32, jnp.float32, jnp.bfloat16
INF, NAN = math.inf, math.nan
LARGEST = 2**31 - 1


def unit_of(function: Callable[..., Any], *args: Any) -> Unit:
    """The equations of a function, with its calls inlined, as the decoder inlines them."""
    jaxpr, consts = jaxcompat.opened(jax.make_jaxpr(function)(*args))

    def inlined(*values: Any) -> list[Any]:
        replay = rewrite._Replay(rewrite.Visitor())
        return replay.run(InnerJaxpr(jaxpr, consts), values, rewrite.ProgramPoint())

    flat, consts = jaxcompat.opened(jax.make_jaxpr(inlined)(*args))
    assert not consts
    return Unit(flat.eqns, flat.invars, flat.outvars, [])


def found(function: Callable[..., Any], *args: Any) -> NumericFault | None:
    """What `explain` says, after the flags said that it is worth asking."""
    unit = unit_of(function, *args)
    watched = numerics.instrumented(unit)
    outputs, flags = watched(*args)
    wanted = jax.tree.leaves(function(*args))
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=1e-5
        )
    assert flags.shape == (len(watched.flags),)
    fault = numeric_faults.explain(unit, args)
    if fault is not None:
        assert bool(flags.any()), fault
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


def dot_int8(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=I8)


ROWS = np.arange(8, dtype="int32").reshape(4, 2)


def positions(start: int, axis: int) -> jax.Array:
    return lax.broadcasted_iota(I32, (8, 8), axis) + start


def permuted(x: jax.Array, dtype: Any) -> jax.Array:
    """Rows moved by a product with a permutation matrix."""
    moves = (positions(0, 0) == (positions(0, 1) + 1) % 8).astype(dtype)
    return jnp.dot(moves, x.astype(dtype), preferred_element_type=F32).astype(I32)


def causal(x: jax.Array, first: int, dtype: Any) -> jax.Array:
    is_seen = positions(first, 0).astype(dtype) >= positions(256, 1).astype(dtype)
    return jnp.where(is_seen, x, 0)


def angles(dtype: Any) -> jax.Array:
    rates = jnp.exp(-positions(0, 0).astype(F32)).astype(dtype)
    return jnp.sin(positions(1000, 1).astype(dtype) * rates)


def requantized(x: jax.Array) -> jax.Array:
    return jnp.clip(jnp.round(x.astype(BF16) * jnp.bfloat16(0.3)), -128, 127).astype(I8)


def best(x: jax.Array) -> jax.Array:
    scores = x.astype(BF16)
    return jnp.where(scores == scores.max(axis=1, keepdims=True), 1, 0)


NUMBERS = np.arange(250, 314, dtype="int32").reshape(8, 8)

FAULTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "inf - inf": (
        masked_softmax,
        (array([[0, 1], [-INF, -INF]], F32),),
        {"trouble": "nan", "operation": "sub", "element": (1, 0), "count": 2, "exact": None},
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
        {"trouble": "nan", "operation": "log", "element": (1,), "values": (-1.0,), "count": 1},
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
            "count": 1,
            "values": (),
            "ranges": ((0.0, 1.0), (1.0, INF)),
            "terms": 2,
            "operands": ("float32[3, 2]", "float32[2, 2]"),
        },
    ),
    "x / 0": (
        lambda x, y: x / y,
        (array([1, 2], F32), array([1, 0], F32)),
        {"trouble": "infinity", "operation": "div", "values": (2.0, 0.0)},
    ),
    "int32 add": (
        lambda x, y: x + y,
        (array([[1, LARGEST]], I32), array([[5, 3]], I32)),
        {
            "trouble": "overflow",
            "operation": "add",
            "element": (0, 1),
            "count": 1,
            "values": (LARGEST, 3),
            "exact": 2**31 + 2,
            "result": -(2**31) + 2,
            "result_type": "int32[1, 2]",
        },
    ),
    "int32 sub": (
        lambda x, y: x - y,
        (array([-LARGEST], I32), array([3], I32)),
        {"operation": "sub", "exact": -LARGEST - 3},
    ),
    "a product of indices": (
        lambda i, n: lax.broadcasted_iota(I32, (4, 2), 0) * n + i,
        (jnp.int32(5), jnp.int32(2**30)),
        {"operation": "mul", "element": (2, 0), "values": (2, 2**30), "exact": 2**31},
    ),
    "a scalar product": (
        lambda i, n: i * n,
        (jnp.int32(70_000), jnp.int32(70_000)),
        {"operation": "mul", "element": (), "exact": 4_900_000_000},
    ),
    "int8 add": (
        lambda x, y: x + y,
        (array([100, 1], I8), array([100, 1], I8)),
        {"operation": "add", "exact": 200, "result": -56, "result_type": "int8[2]"},
    ),
    "int8 sum": (
        lambda x: lax.reduce_sum_p.bind(x, axes=(1,), out_sharding=None),
        (array(np.full((2, 40), [[1], [5]]), I8),),
        {
            "trouble": "overflow",
            "operation": "reduce_sum",
            "element": (1,),
            "terms": 40,
            "exact": 200,
            "result": -56,
            "values": (),
        },
    ),
    "int32 sum": (
        lambda x: x.sum(axis=0),
        (array(np.full((3, 2), [2**30, 7]), I32),),
        {"operation": "reduce_sum", "element": (0,), "exact": 3 * 2**30, "terms": 3},
    ),
    "int32 running sum": (
        lambda x: lax.cumsum(x, 1),
        (array([[2**30, 2**30, -(2**30)]], I32),),
        {"operation": "cumsum", "element": (0, 1), "exact": 2**31, "count": 1},
    ),
    "int8 product into int8": (
        dot_int8,
        (array(np.full((2, 4), [[0], [9]]), I8), array(np.full((4, 2), 9), I8)),
        {"operation": "dot_general", "element": (1, 0), "exact": 324, "result": 68, "terms": 4},
    ),
    "int32 product": (
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        (array(np.full((2, 2, 2), 2**15), I32), array(np.full((2, 2, 3), 2**15), I32)),
        {"operation": "dot_general", "element": (0, 0, 0), "exact": 2**31},
    ),
    "abs of the lowest": (
        lambda x: jnp.abs(x),
        (array([-128, 3], I8),),
        {"operation": "abs", "values": (-128,), "exact": 128, "result": -128},
    ),
    "neg of the lowest": (
        lambda x: -x,
        (array([-(2**31)], I32),),
        {"operation": "neg", "exact": 2**31},
    ),
    "a square": (lambda x: x**2, (array([3, 2**16], I32),), {"exact": 2**32, "element": (1,)}),
    "bits shifted out": (
        lambda x: (x << 20) + 1,
        (array([1, 4096], I32),),
        {"operation": "shift_left", "values": (4096, 20), "exact": 2**32, "result": 0},
    ),
    "the lowest by -1": (
        lambda x, y: lax.div(x, y),
        (array([-(2**31)], I32), array([-1], I32)),
        {"trouble": "overflow", "operation": "div", "exact": 2**31},
    ),
    "integer division by zero": (
        lambda x, y: lax.div(x, y),
        (array([4, 5], I32), array([2, 0], I32)),
        {"trouble": "division", "operation": "div", "element": (1,), "values": (5, 0)},
    ),
    "unsigned remainder by zero": (
        lambda x, y: lax.rem(x, y),
        (array([4, 5], jnp.uint32), jnp.uint32(0)),
        {"trouble": "division", "operation": "rem", "values": (4, 0), "count": 2},
    ),
    "int32 to int8": (
        lambda x: x.astype(I8),
        (array([[1, 300]], I32),),
        {
            "trouble": "narrowing",
            "operation": "convert_element_type",
            "element": (0, 1),
            "values": (300,),
            "exact": 300,
            "result": 44,
            "operands": ("int32[1, 2]",),
        },
    ),
    "a scalar to int8": (
        lambda i: (i * 3).astype(I8),
        (jnp.int32(50),),
        {"trouble": "narrowing", "values": (150,), "result": -106},
    ),
    "float to int8": (
        lambda x: x.astype(I8),
        (array([127.9, -128.9, 500], F32),),
        {"trouble": "narrowing", "element": (2,), "values": (500.0,), "count": 1},
    ),
    "float to int32": (
        lambda x: x.astype(I32),
        (array([-(2.0**31), 2.0**31], F32),),
        {"trouble": "narrowing", "element": (1,), "values": (2.0**31,)},
    ),
    "float to float16": (
        lambda x: x.astype(jnp.float16),
        (array([1, 7e4, INF], F32),),
        {"trouble": "infinity", "values": (7e4,), "result": INF, "count": 1},
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
    assert fault.line is not None
    assert fault.line.file == __file__


def test_a_nan_to_an_integer() -> None:
    fault = found(lambda x: x.astype(I32), array([1, NAN], F32))
    assert fault is not None
    assert (fault.trouble, fault.element) == ("narrowing", (1,))
    assert math.isnan(fault.values[0])


def hashed(x: jax.Array) -> jax.Array:
    for factor in (0x7FEB352D, 0x046A68B):
        x = (x ^ lax.shift_right_logical(x, jnp.int32(15))) * factor
    return x ^ lax.shift_right_logical(x, jnp.int32(16))


def flash(q: jax.Array, k: jax.Array, m: jax.Array, acc: jax.Array, i: jax.Array) -> Any:
    s = lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=F32)
    rows = lax.broadcasted_iota(I32, s.shape, 0) + i * s.shape[0]
    s = jnp.where(rows >= lax.broadcasted_iota(I32, s.shape, 1), s, -INF)
    new = jnp.maximum(m, s.max(axis=1, keepdims=True))
    p = jnp.exp(s - new)
    acc = acc * jnp.exp(m - new) + p.astype(k.dtype) @ k
    return new, acc


HEALTHY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (
        flash,
        (
            *(jnp.ones((8, 128), BF16), jnp.ones((8, 128), BF16), jnp.full((8, 1), -INF)),
            *(jnp.zeros((8, 128)), jnp.int32(1)),
        ),
    ),
    "quantized product": (
        lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=I32),
        (jnp.full((8, 32), -128, I8), jnp.full((32, 8), -128, I8)),
    ),
    "random bits": (
        lambda k: jax.random.bits(jax.random.wrap_key_data(k), (4,)) + k[0] * k[1],
        (array([2**31, 2**31 + 7], jnp.uint32),),
    ),
    "unpacked int4": (
        lambda x: lax.shift_right_arithmetic(x << 28, jnp.int32(28)),
        (array([15, 8, 0x7FFFFFF3], I32),),
    ),
    "packed bytes": (
        lambda x, y: ((x << 24) | y, (x & 0xFF).astype(I8), ((x * 77) & 0xFF) << 2),
        (array([0x7FABCDEF], I32), array([3], I32)),
    ),
    "a sign bit": (lambda x: jnp.int32(1) << x, (array([31], I32),)),
    "clipped": (
        lambda x: jnp.clip(jnp.round(x * 127), -128, 127).astype(I8),
        (array([3.5, -1e9, 1e9], F32),),
    ),
    "sigmoid": (lambda x: 1 / (1 + jnp.exp(-x)), (array([-100, 3], F32),)),
    "floor division": (lambda x, y: (x // y, x % y), (array([-7, 5], I32), array([2, 3], I32))),
    "NaN and infinity that were there": (
        lambda x: (x * 2 + 1).sum(axis=1),
        (array([[NAN, 1], [INF, 1]], F32),),
    ),
    "rounded": (lambda x: x.astype(BF16), (array([1.00001, -3.4028235e38, 3.38e38], F32),)),
}

MASKED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a guarded division": (
        lambda x, y: jnp.where(y == 0, 0, lax.div(x, y)),
        (array([7, 5], I32), array([2, 0], I32)),
    ),
    "an overflow out of bounds": (
        lambda x, n: jnp.where(x < n, x + 10, 0),
        (array([LARGEST, 5], I32), jnp.int32(100)),
    ),
    "a cast out of bounds": (
        lambda x: jnp.where(jnp.abs(x) < 100, x.astype(I8), 0),
        (array([300, 5], I32),),
    ),
    "hashed": (hashed, (array([12345, -77777], I32),)),
    "bits of a hash in float32": (
        lambda x: (lax.shift_right_logical(hashed(x), jnp.int32(1)).astype(F32)).astype(I32),
        (array([12345, -77777], I32),),
    ),
    "integers that bfloat16 holds": (
        lambda x: ((x % 256).astype(BF16).astype(I32), permuted(x % 256, BF16)),
        (NUMBERS,),
    ),
    "integers in float32": (lambda x: x.astype(F32).astype(I32), (NUMBERS,)),
    "a rounded integer that is discarded": (
        lambda x: jnp.where(x <= 256, x.astype(BF16).astype(I32), -1),
        (NUMBERS,),
    ),
    "a rounded sum that is scaled": (lambda x: x.astype(BF16) * jnp.bfloat16(0.3), (NUMBERS,)),
    "a rounded sum that is quantized again": (requantized, (NUMBERS,)),
    "the best of rounded scores": (best, (NUMBERS,)),
    "positions whose order rounding keeps": (lambda x: causal(x, 600, BF16), (NUMBERS,)),
    "distances in bfloat16": (
        lambda: (positions(2000, 0) - positions(0, 1)).astype(BF16) * jnp.bfloat16(-0.1),
        (),
    ),
    "angles in float32": (lambda: angles(F32), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_arithmetic_raises_no_flag(name: str) -> None:
    function, args = HEALTHY[name]
    if name != "random bits":
        assert found(function, *args) is None
    _, flags = numerics.instrumented(unit_of(function, *args))(*args)
    is_finite = name != "NaN and infinity that were there"
    assert bool(flags.any()) is not is_finite


@pytest.mark.parametrize("name", MASKED)
def test_what_no_output_depends_on_is_no_fault(name: str) -> None:
    function, args = MASKED[name]
    assert found(function, *args) is None


def test_only_what_can_go_wrong_is_tested() -> None:
    def flags(function: Callable[..., Any], *args: Any) -> list[str]:
        unit = unit_of(function, *args)
        return [
            f"{kind} {unit.eqns[n].primitive.name if kind == 'equation' else n}"
            for kind, n in numerics.instrumented(unit).flags
        ]

    x, i = jnp.ones((8, 128)), jnp.int32(3)
    assert flags(lambda x: (x.T, x.max(axis=0)), x) == []
    assert flags(lambda x: jnp.where(x > 0, x, -INF), x) == []
    assert flags(lambda i: jnp.where(i > 0, i, -1), i) == []
    assert flags(lambda x: (x * 2, x.max()), x) == ["output 0"]
    assert flags(lambda i: i * 8, i) == ["equation mul"]
    assert flags(lambda a: lax.div(a, 3), jnp.ones(8, I32)) == []
    empty = numerics.instrumented(unit_of(lambda x: x.T, x))
    assert empty(x)[1].shape == (0,)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_element_of_many(bad: float) -> None:
    """XLA vectorises the test of a large array; a maximum, for one, would drop NaNs."""
    x = np.zeros((512, 512), "float32")
    watched = numerics.instrumented(unit_of(lambda x: x * 2, x))
    for place in ((0, 0), (17, 300), (511, 511)):
        x[place] = bad
        assert bool(watched(x)[1].any()) is (bad != -INF)
        x[place] = 0
    assert not watched(x)[1].any()


# Sums in few bits


def _with_result(unit: Unit, result: jax.Array) -> Unit:
    """The unit, with an operation that gives `result`: what a sum in bfloat16 gives."""

    class Sum:
        name, multiple_results = "cumsum", False

        def bind(self, *inputs: Any, **params: Any) -> Any:
            return result

        def get_bind_params(self, params: Any) -> Any:
            return params

    (eqn,) = unit.eqns

    class Equation:
        primitive, params, ctx = Sum(), eqn.params, eqn.ctx
        invars, outvars, source_info = eqn.invars, eqn.outvars, eqn.source_info

    return Unit([Equation()], unit.invars, unit.outvars, [])


def accumulate(acc: jax.Array, x: jax.Array, scale: jax.Array) -> Any:
    return (acc.astype(F32) * scale + x.astype(F32)).astype(BF16), x.astype(F32).sum()
