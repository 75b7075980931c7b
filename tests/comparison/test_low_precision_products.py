"""Results with float32 products as a TPU computes them, of operands rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.bridge.jaxprs import bfloat16_products
from pallas_debug.model import Finding

N = 128
COUNTS = jnp.asarray(np.random.default_rng(0).integers(0, 2000, (N, N), np.int32))
NORMAL = jnp.asarray(np.random.default_rng(1).standard_normal((N, N), np.float32))
ABOVE_ONE = jnp.full((N, N), 1.003)
DEFAULT, HIGHEST = None, lax.Precision.HIGHEST


def lower_triangle() -> jax.Array:
    row, column = (lax.broadcasted_iota(jnp.int32, (N, N), d) for d in (0, 1))
    return jnp.where(row >= column, 1.0, 0.0)


def on_whole(kernel: Callable[..., None], out: Any, *args: Any) -> Any:
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype))(*args)


def offsets_with(precision: Any) -> Callable[[Any], Any]:
    """Prefix sums of integers by a matrix of ones."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        counts = x_ref[...].astype(jnp.float32)
        sums = jnp.dot(lower_triangle(), counts, precision=precision)
        o_ref[...] = sums.astype(jnp.int32)

    def offsets(x: Any) -> Any:
        return on_whole(kernel, x, x)

    return offsets


def offsets_reference(x: Any) -> Any:
    return jnp.cumsum(x, axis=0)


def compared(function: Any, reference: Any, *args: Any, **options: Any) -> tuple[Finding, ...]:
    return pallas_debug.compare(function, reference, *args, **options).findings


@pytest.mark.slow
def test_what_is_exact_is_no_fault() -> None:
    """As advised, and for integers that bfloat16 holds."""
    assert not compared(offsets_with(HIGHEST), offsets_reference, COUNTS)
    assert not compared(offsets_with(DEFAULT), offsets_reference, COUNTS % 256)


def matmul(x: Any, y: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    return on_whole(kernel, x, x, y)


def test_a_product_whose_error_bfloat16_explains_is_no_fault() -> None:
    assert not compared(matmul, jnp.dot, NORMAL, NORMAL)


def decay(x: Any) -> Any:
    """exp of a product of numbers that bfloat16 rounds to 1, all downwards."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.exp(jnp.dot(x_ref[...], x_ref[...]) - N)

    return on_whole(kernel, x, x)


@pytest.mark.slow
def test_nothing_is_said_where_the_reference_is_as_far_off() -> None:
    rounded = pallas_debug.interpret(bfloat16_products.rounded(decay))(ABOVE_ONE)
    assert (rounded == 1).all()
    assert (decay_of(ABOVE_ONE) > 2).all()
    for dot, array in ((jnp.dot, jnp.asarray), (np.dot, np.asarray)):  # they sum in other orders
        reference = lambda x, f=dot, g=array: jnp.exp(f(g(x), g(x)) - N)  # noqa: E731
        assert not compared(decay, reference, ABOVE_ONE, rtol=1e-3)


def decay_of(x: Any) -> Any:
    return jnp.exp((x[:, :, None] * x[None]).sum(1) - N)


@pytest.mark.slow
def test_a_reference_without_the_product_shows_it() -> None:
    (finding,) = compared(decay, decay_of, ABOVE_ONE)
    assert finding.kind == "LowPrecisionProduct"
    assert "first, [0, 0] is 1 with rounding, 2.1" in finding.message
    assert ", allowed 0.033" in finding.message


def both_products(x: Any, y: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        first = jnp.dot(lower_triangle(), x_ref[...].astype(jnp.float32))
        second = jnp.dot(lower_triangle(), y_ref[...].astype(jnp.float32))
        o_ref[...] = first.astype(jnp.int32) - second.astype(jnp.int32)

    return on_whole(kernel, x, x, y)


@pytest.mark.slow
def test_two_products_are_both_named() -> None:
    def reference(x: Any, y: Any) -> Any:
        return offsets_reference(x) - offsets_reference(y)

    (finding,) = compared(both_products, reference, COUNTS, COUNTS.T)
    lines = [str(line and line.text) for line in (finding.witness.source, finding.witness.other)]
    assert [line.partition(" = ")[0] for line in lines] == ["first", "second"]


def test_a_function_that_jax_cannot_trace_is_not_judged() -> None:
    def offsets(x: Any) -> Any:
        return offsets_with(DEFAULT)(x) if int(x.sum()) else x

    report = pallas_debug.compare(offsets, offsets_reference, COUNTS)
    assert report.ok
    (note,) = report.notes
    assert note.startswith(
        "not judged: its float32 products as a TPU computes them, with operands rounded to "
        "bfloat16: with those, the function stops: ConcretizationTypeError: "
    )
