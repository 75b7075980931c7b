"""An output that nothing uses need not be written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_debug.verdict import Verdict, verify

X = jax.ShapeDtypeStruct((16, 128), jnp.float32)


def top(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def top(x_ref: Any, sum_ref: Any, best_ref: Any) -> None:
        sum_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        top, out_shape=(x, x), grid=(2,), in_specs=[block], out_specs=(block, block)
    )(x)


def used(x: jax.Array) -> jax.Array:
    doubled, best = jax.jit(top)(x)
    return doubled + best


def unused(x: jax.Array) -> jax.Array:
    doubled, _ = jax.jit(top)(x)
    return doubled


def unused_in_a_vjp(x: jax.Array) -> jax.Array:
    @jax.custom_vjp
    def doubled(x: jax.Array) -> jax.Array:
        return top(x)[0]

    doubled.defvjp(lambda x: (top(x)[0], None), lambda _, g: (g,))
    return doubled(x)


def used_once(x: jax.Array) -> jax.Array:
    return unused(x) + top(x)[1]


def used_in_a_loop(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 2, lambda _, y: top(y)[1], x)


def judged(function: Any) -> Verdict:
    return verify(function, X, engines="static,machine", targets="v5e")


def test_an_output_that_nothing_uses_is_a_note() -> None:
    for function in (unused, unused_in_a_vjp):
        verdict = judged(function)
        assert verdict.findings == ()
        assert {o.status for o in verdict.outcomes} == {"ok"}
        assert verdict.notes == (
            "kernel `top` does not write all of best_ref: nothing uses that output",
        )


def test_one_that_is_used_anywhere_is_found() -> None:
    for function in (top, used, used_once, used_in_a_loop):
        (finding,) = judged(function).findings
        assert (finding.kind, finding.operand) == ("OutputNotWritten", "best_ref")
