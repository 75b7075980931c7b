"""Kernels with huge grids and loops are refused before they run, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import interpret
from pallas_debug.errors import InterpretModeError
from pallas_debug.verdict import verify

X = jnp.ones((8, 128))
MODES = ["hlo", "tpu", "machine"]
WHERE = {
    "hlo": "in HLO interpret mode",
    "tpu": "in TPU interpret mode",
    "machine": "on the kernel machine",
}


def launch(kernel: Callable[..., None], **more: Any) -> Callable[[Any], Any]:
    return lambda x: pl.pallas_call(kernel, out_shape=x, **more)(x)


def counted(iterations: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        def body(i: Any, carry: Any) -> Any:
            o_ref[0, 0:1] = o_ref[0, 0:1] + 1.0
            return carry

        lax.fori_loop(0, iterations, body, 0)

    return kernel


def add(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1.0


def refusal(function: Callable[[Any], Any], mode: str) -> str:
    with pytest.raises(InterpretModeError) as raised, interpret(mode):
        function(X)
    return str(raised.value).partition("\n")[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_huge_loop(mode: str) -> None:
    message = refusal(launch(counted(2**31 - 1)), mode)
    assert message.startswith(
        "kernel `kernel` is too long to be interpreted: a loop in it has 2,147,483,647 iterations at "
    )
    assert "test_lengths.py:" in message
    assert message.endswith(
        "   lax.fori_loop(0, iterations, body, 0). That is 2,147,483,647 steps, but at most "
        f"100,000,000 are run {WHERE[mode]}. Call it with smaller arguments here, or run it on a "
        "TPU"
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_huge_grid(mode: str) -> None:
    assert refusal(launch(add, grid=(1024, 2**20)), mode) == (
        "kernel `add` is too long to be interpreted: its grid (1024, 1048576) has 1,073,741,824 "
        f"points. That is 1,073,741,824 steps, but at most 100,000,000 are run {WHERE[mode]}. "
        "Call it with smaller arguments here, or run it on a TPU"
    )


def test_loops_in_loops_at_each_grid_point() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        @pl.when(pl.program_id(0) > 0)
        def _() -> None:
            def outer(i: Any, carry: Any) -> Any:
                return lax.fori_loop(0, 2000, lambda j, c: c + o_ref[0, 0], carry)

            o_ref[0, 0] = lax.fori_loop(0, 1000, outer, jnp.float32(0))

    message = refusal(launch(kernel, grid=(64,)), "hlo")
    assert "its grid (64,) has 64 points and a loop in it has 2,000 iterations at " in message
    assert "That is 128,000,000 steps, but at most 100,000,000 " in message


def test_the_limit_is_lower_where_a_step_takes_long() -> None:
    """Loops that access no memory are cheap everywhere."""
    message = refusal(launch(counted(3_000_000)), "machine")
    assert "That is 3,000,000 steps, but at most 2,000,000 are run on the kernel machine" in message

    def pure(x_ref: Any, o_ref: Any) -> None:
        end = lax.fori_loop(0, 3_000_000, lambda i, x: x * 0.5 + 1.0, x_ref[0, 0])
        o_ref[...] = x_ref[...] * 0.0 + end

    with interpret("machine"):
        assert launch(pure)(X)[0, 0] == 2.0


def test_what_auto_runs_elsewhere_has_the_limit_of_that_mode() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.prng_seed(0)
        counted(3_000_000)(x_ref, o_ref)

    assert "at most 2,000,000 are run in TPU interpret mode" in refusal(launch(kernel), "auto")


def test_what_is_too_long_is_not_judged() -> None:
    function = launch(add, grid=(1024, 2**20))
    verdict = verify(function, jax.ShapeDtypeStruct((8, 128), "float32"), engines="static,checks")
    assert verdict.findings == ()
    assert not verdict.ok
    (gap,) = verdict.gaps
    assert gap.engine == "checks"
    assert "too long to be interpreted: its grid (1024, 1048576)" in gap.reason
