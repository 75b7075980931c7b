"""An input of which a part is not read, beside another that reads it, if they are one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from pallas_debug.verdict import verify

BUFFER = np.ones((24, 128), np.float32)
"""NumPy's views of it are objects of their own, and one array."""

X, Y = (jax.ShapeDtypeStruct((16, 128), jnp.float32) for _ in range(2))


def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
    """Multiplies each block of `x` by the first one of `y`, where it should be the same one."""

    def scale(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * y_ref[...]

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    first = pl.BlockSpec((8, 128), lambda i: (0, 0))
    return pl.pallas_call(scale, grid=(2,), in_specs=[rows, first], out_specs=rows, out_shape=x)(
        x, y
    )


def of_one_source(x: jax.Array, y: jax.Array) -> jax.Array:
    return scaled(jnp.sin(x), jnp.cos(x))


def in_a_loop(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 2, lambda _, carried: scaled(carried, y), x)


def twice(x: jax.Array, y: jax.Array) -> jax.Array:
    return scaled(x, x) + scaled(x, y)


@jax.custom_vjp
def with_a_gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    return scaled(x, y)


with_a_gradient.defvjp(lambda x, y: (scaled(x, y), None), lambda _, g: (g, g))


@pytest.mark.parametrize(
    "function, args, counts",
    [
        (scaled, (X, Y), True),
        (scaled, (X, X), False),
        (scaled, (BUFFER[:16], BUFFER[8:]), False),
        (scaled, (BUFFER[:16], BUFFER[8:].copy()), True),
        (jax.jit(scaled), (X, Y), True),
        (lambda x, y: scaled(x, x), (X, Y), False),
        (lambda x, y: scaled(x, jnp.flip(x, 0)), (X, Y), False),
        (lambda x, y: scaled(*jnp.split(jnp.concatenate([x, y]), 2)), (X, Y), False),
        (of_one_source, (X, Y), True),
        (in_a_loop, (X, Y), True),
        (twice, (X, Y), False),
        (with_a_gradient, (X, Y), True),
    ],
)
def test_an_input_counts_where_no_other_operand_is_the_same_array(
    function: Callable[..., Any], args: tuple[Any, Any], counts: bool
) -> None:
    verdict = verify(function, *args, engines="static", targets="v5e")
    (finding,) = verdict.findings
    assert (finding.kind, finding.operand) == ("InputNotRead", "y_ref")
    assert finding.counts is counts
    assert finding.only_if == (None if counts else "y_ref and x_ref are not the same array")
    assert not verdict.problems
