"""Kernels with huge grids and loops are refused before they run, in every mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import interpret
from pallas_debug.bridge.interpret import lengths, tpu_interpret
from pallas_debug.errors import InterpretModeError
from pallas_debug.model import Finding

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


def stopped(function: Callable[[Any], Any], after: float) -> Finding | None:
    """The finding of a kernel in HLO interpret mode that ran longer than the limit."""
    found: list[Finding] = []
    with (
        contextlib.suppress(jax.errors.JaxRuntimeError),
        interpret("hlo"),  # first: it compares what reporting replaces with jax's own functions
        tpu_interpret.reporting(found.append, hang_after=None, stop_after=after),
    ):
        jax.block_until_ready(function(X))
    assert len(found) < 2
    return found[0] if found else None


def nested_loops(outer: int, inner: int) -> Callable[..., None]:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def body(i: Any, total: Any) -> Any:
            def inner_body(j: Any, total: Any) -> Any:
                return total + o_ref[0, 0] + j

            return lax.fori_loop(0, inner, inner_body, total)

        o_ref[...] = x_ref[...]
        o_ref[0, 0] = lax.fori_loop(0, outer, body, jnp.float32(0))

    return kernel


@pytest.mark.parametrize(
    "kernel, grid, line, iteration",
    [
        (counted(5), (), "lax.fori_loop(0, iterations, body, 0)", "1 of 5"),
        (counted(300), (64,), "lax.fori_loop(0, iterations, body, 0)", "1 of 300"),
        (counted(300), (65,), "lax.fori_loop(0, iterations, body, 0)", "65 of 300"),
        (nested_loops(1, 300), (), "lax.fori_loop(0, inner, inner_body, total)", "65 of 300"),
    ],
)
def test_a_loop_of_fixed_length_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    line: str,
    iteration: str,
) -> None:
    """Inner loops, and those of many grid points, look at the time from iteration 65 on."""
    monkeypatch.setattr(lengths, "_looking", lambda *_: lambda *ids: np.int32(0))
    found = stopped(launch(kernel, grid=grid), 0.0)
    assert found is not None
    assert found.witness.source is not None
    assert line in found.witness.source.text
    assert found.message == f"stopped after 0 s in HLO interpret mode, at iteration {iteration}"


def test_loops_within_the_limit() -> None:
    def several(x_ref: Any, o_ref: Any) -> None:
        for first in (0, 7):
            o_ref[...] = x_ref[...]
            end = lax.fori_loop(first, first + 200, lambda i, t: t + i, jnp.int32(0), unroll=4)
            o_ref[0, 0] = o_ref[0, 0] + end.astype(jnp.float32)
        nested_loops(3, 70)(x_ref, o_ref)

    assert stopped(launch(several), 600.0) is None
    found = stopped(launch(several), 0.0)
    assert found is not None
    assert "in HLO interpret mode" in found.message
