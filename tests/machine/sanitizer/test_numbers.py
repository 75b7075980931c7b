"""Arithmetic, sums, loops, hints and checks that go wrong, as the kernel machine finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug import defaults
from pallas_debug.errors import KernelFault
from pallas_debug.machine import run as machine_run
from pallas_debug.machine.numbers import ClaimsObserver, NumbersObserver
from pallas_debug.model import Finding

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
INF, NAN = float("inf"), float("nan")


Sanitized = Callable[..., list[Finding]]


@pytest.fixture
def sanitized(monkeypatch: pytest.MonkeyPatch) -> Sanitized:
    """Findings about the numbers of the kernels that a function runs."""
    found: list[Finding] = []
    run = machine_run.run

    def observed(launch: Any, arrays: Any, **options: Any) -> machine_run.MachineRun:
        observers = [ClaimsObserver(launch), NumbersObserver(launch, infinities=False)]
        ran = run(launch, arrays, **{**options, "observers": observers})
        found.extend(ran.findings)
        return ran

    monkeypatch.setattr(machine_run, "run", observed)

    def findings(function: Callable[..., Any], *args: Any) -> list[Finding]:
        found.clear()
        is_stopped = contextlib.suppress(jax.errors.JaxRuntimeError, KernelFault)
        is_done = False
        with pallas_debug.interpret("machine,sanitize"), is_stopped:
            jax.block_until_ready(jax.jit(function)(*args))
            is_done = True
        assert is_done == (not any(one.kind == "EndlessLoop" for one in found))
        return list(found)

    return findings


# NaNs without a cause


def call(body: Callable[..., None], *args: Any, scratch: Any = (), **options: Any) -> Any:
    """Run a body with all arrays as a whole; the result is like the first of them."""
    return pl.pallas_call(body, out_shape=args[0], scratch_shapes=list(scratch), **options)(*args)


ROWS = np.ones((8, 128), "float32")
ROWS[3] = 0


@pytest.mark.slow
def test_a_nan_that_another_unit_masks_is_none(sanitized: Sanitized) -> None:
    def masked(x_ref: Any, out_ref: Any, mean_ref: Any) -> None:
        mean_ref[...] = x_ref[...] / x_ref[...].sum(axis=1, keepdims=True)
        out_ref[...] = jnp.where(x_ref[...] > 0, mean_ref[...], 0.0)

    def kept(x_ref: Any, out_ref: Any, mean_ref: Any) -> None:
        mean_ref[...] = x_ref[...] / x_ref[...].sum(axis=1, keepdims=True)
        out_ref[...] = mean_ref[...] * 2

    scratch = [pltpu.VMEM((8, 128), F32)]
    assert sanitized(lambda x: call(masked, x, scratch=scratch), ROWS) == []
    (finding,) = sanitized(lambda x: call(kept, x, scratch=scratch), ROWS)
    assert (finding.kind, finding.witness.values["element"]) == ("NanProduced", "[3, 0]")


@pytest.mark.slow
def test_the_origin_is_that_of_the_nan_in_the_result(sanitized: Sanitized) -> None:
    """Of the same line at several grid points, some masked, the one that reaches a result."""

    def means(x_ref: Any, out_ref: Any, mean_ref: Any) -> None:
        mean_ref[...] = x_ref[...] / x_ref[...].sum(axis=1, keepdims=True)
        is_late = pl.program_id(0) > 9
        out_ref[...] = jnp.where((x_ref[...] > 0) | is_late, mean_ref[...], 0.0)

    def run(x: Any) -> Any:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            means, out_shape=x, grid=(12,), in_specs=[block], out_specs=block,
            scratch_shapes=[pltpu.VMEM((8, 128), F32)],
        )(x)  # fmt: skip

    (finding,) = sanitized(run, np.tile(ROWS, (12, 1)))
    assert (finding.kind, finding.grid_point) == ("NanProduced", (10,))


@pytest.mark.parametrize("dtype, sees", [
    (BF16, "`log` produced a NaN from -3 at [0, 0] of bfloat16[8, 128]"),
    (jnp.float8_e4m3fn, "`convert_element_type` produced a NaN from 1344 at [0, 0] of float8_e4m3fn[8, 128]"),
])  # fmt: skip
def test_floats_that_numpy_does_not_know_are_floats(
    dtype: Any, sees: str, sanitized: Sanitized
) -> None:
    def body(x_ref: Any, out_ref: Any) -> None:
        if dtype == BF16:
            out_ref[...] = jnp.log(x_ref[...].astype(dtype) - 6)
        else:
            out_ref[...] = (x_ref[...] * 448).astype(dtype)

    def run(x: Any) -> Any:
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, dtype))(x)

    (finding,) = sanitized(run, jnp.full((8, 128), 3.0))
    assert finding.message == sees
    if dtype != BF16:
        assert sanitized(run, jnp.ones((8, 128))) == []


@pytest.mark.slow
def test_nans_of_the_inputs_and_of_unwritten_memory_are_none(sanitized: Sanitized) -> None:
    def scaled(x_ref: Any, out_ref: Any, new_ref: Any) -> None:
        total = (x_ref[...] * 2 + 1).sum(axis=1, keepdims=True)
        out_ref[...] = total + new_ref[...] * 3

    x = ROWS.copy()
    x[2, 5], x[4, 7] = NAN, INF
    assert sanitized(lambda x: call(scaled, x, scratch=[pltpu.VMEM((8, 128), F32)]), x) == []


@pytest.mark.slow
def test_a_nan_follows_copies_swaps_loops_and_branches(sanitized: Sanitized) -> None:
    def body(x_ref: Any, out_ref: Any, a_ref: Any, b_ref: Any, sem: Any) -> None:
        start = jnp.log(x_ref[...] - 1)  # 0, and NaN in row 3
        a_ref[...] = start

        @pl.when(x_ref[0, 0] > 0)
        def _copy() -> None:
            copy = pltpu.make_async_copy(a_ref, b_ref, sem)
            copy.start()
            copy.wait()

        def add(i: Any, total: Any) -> Any:
            out_ref[...] = total
            return total + b_ref[...]

        out_ref[...] = lax.fori_loop(0, 3, add, jnp.zeros((8, 128), F32))

    scratch = [pltpu.VMEM((8, 128), F32), pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA]
    (finding,) = sanitized(lambda x: call(body, x, scratch=scratch), ROWS)
    assert (finding.kind, finding.witness.values["operand 0"]) == ("NanProduced", "-1")
    assert "jnp.log" in (finding.source.text or "")


@jax.jit
def shares(x: jax.Array) -> jax.Array:
    return x / x.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_the_line_is_that_inside_calls_loops_and_branches(sanitized: Sanitized) -> None:
    """Plain ones, which touch no reference."""

    def called(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = shares(x_ref[...]) * 2

    def looped(x_ref: Any, out_ref: Any) -> None:
        def halve(i: Any, x: Any) -> Any:
            less = x - 0.25
            return less * jnp.sqrt(less)

        out_ref[...] = lax.fori_loop(0, 3, halve, x_ref[...] + 0.5)

    def chosen(x_ref: Any, out_ref: Any) -> None:
        is_first = x_ref[0, 0] > 0
        out_ref[...] = lax.cond(is_first, lambda x: jnp.log(x - 0.5), lambda x: x, x_ref[...])

    for body, line, loop in (
        (called, "x / x.sum", ()),
        (looped, "jnp.sqrt(less)", (1,)),
        (chosen, "jnp.log(x - 0.5)", ()),
    ):
        (finding,) = sanitized(lambda x, body=body: call(body, x), ROWS)
        assert (finding.kind, finding.loop) == ("NanProduced", loop)
        assert line in (finding.source.text or "")


# Loops


def test_a_loop_that_changes_is_stopped_at_the_limit(
    sanitized: Sanitized, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(x_ref: Any, out_ref: Any) -> None:
        steps = lax.while_loop(lambda n: n != -1, lambda n: n + 2, x_ref[0, 0])
        out_ref[...] = jnp.full_like(out_ref, steps)

    monkeypatch.setattr(defaults, "MAX_ITERATIONS", 1000)
    (finding,) = sanitized(lambda x: call(counts, x), np.zeros((8, 128), "int32"))
    assert (finding.kind, finding.loop) == ("EndlessLoop", (1000,))
    assert finding.message == "the loop has not ended after 1,000 iterations, with n = 2000"
    assert finding.cause == "the kernel machine stops every loop at this limit"
    assert finding.advice.endswith("use smaller arguments")


def test_a_counter_that_a_loop_never_changes(
    sanitized: Sanitized, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(x_ref: Any, out_ref: Any) -> None:
        def body(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            n, limit = carry
            out_ref[...] = out_ref[...] * 0 + n
            return n, limit

        out_ref[...] = x_ref[...]
        lax.while_loop(lambda carry: (out_ref[0, 0] == 0) & (carry[0] < carry[1]), body, (0, 40))

    monkeypatch.setattr(defaults, "MAX_ITERATIONS", 100)
    (finding,) = sanitized(lambda x: call(waits, x), np.zeros((8, 128), "int32"))
    assert finding.message == (
        "the loop has not ended after 100 iterations, with carry[0] = 0, carry[1] = 40; its body "
        "never changes carry[0] and carry[1]"
    )


@pytest.mark.slow
def test_a_loop_that_counts_to_a_bound_has_a_higher_limit(
    sanitized: Sanitized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "MAX_ITERATIONS", 50)

    def sums(x_ref: Any, out_ref: Any) -> None:
        total = lax.fori_loop(0, x_ref[0, 0], lambda _, n: n + x_ref[0, 1], jnp.int32(0))
        out_ref[...] = jnp.full_like(out_ref, total)

    def moves_its_bound(x_ref: Any, out_ref: Any) -> None:
        start = (jnp.int32(0), x_ref[0, 0])
        steps, _ = lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1] + 1), start)
        out_ref[...] = jnp.full_like(out_ref, steps)

    def decides_otherwise(x_ref: Any, out_ref: Any) -> None:
        steps = lax.while_loop(lambda n: n != x_ref[0, 0], lambda n: n + 1, jnp.int32(0))
        out_ref[...] = jnp.full_like(out_ref, steps)

    x = np.full((8, 128), 200, "int32")
    assert sanitized(lambda x: call(sums, x), x) == []
    for kernel in (moves_its_bound, decides_otherwise):
        (finding,) = sanitized(lambda x, kernel=kernel: call(kernel, x), x)
        assert (finding.kind, finding.loop) == ("EndlessLoop", (50,))
    monkeypatch.setattr(defaults, "MAX_SIMULATED_STEPS", 100)
    (finding,) = sanitized(lambda x: call(sums, x), x)
    assert (finding.kind, finding.loop) == ("EndlessLoop", (100,))


def test_what_a_loop_writes_may_end_it(sanitized: Sanitized) -> None:
    """Its condition sees the same for a while, and the body changes what it reads."""

    def drains(x_ref: Any, out_ref: Any, left_ref: Any) -> None:
        left_ref[0] = 20

        def step(_: Any) -> Any:
            left_ref[0] -= 1
            return left_ref[0] > 0

        lax.while_loop(lambda goes_on: goes_on, step, True)
        out_ref[...] = x_ref[...]

    scratch = [pltpu.SMEM((1,), I32)]
    assert sanitized(lambda x: call(drains, x, scratch=scratch), ROWS) == []


# Checks


def test_a_check_shows_what_it_compares(sanitized: Sanitized) -> None:
    @called(
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, _: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, _: (0, 0)),
        )
    )
    def body(lengths_ref: Any, x_ref: Any, out_ref: Any) -> None:
        length = lengths_ref[pl.program_id(0)]
        pl.debug_check(length <= 8, "a length is too long")
        pl.debug_check(jnp.all(x_ref[...] > 0), "a weight is not positive")
        pl.debug_check((length > 0) & (length < 12), "a length is out of range")
        out_ref[...] = x_ref[...]

    weight, length, both = sanitized(body, np.array([5, 9, 12], "int32"), ROWS)
    assert {one.kind for one in (weight, length, both)} == {"CheckFailed"}
    assert (length.message, length.count) == ("a length is too long", 2)
    assert (length.grid_point, length.cause) == ((1,), "9 <= 8 is false")
    assert (weight.message, weight.count) == ("a weight is not positive", 3)
    assert (weight.grid_point, weight.cause) == ((0,), "0 > 0 is false at [3, 0]")
    assert weight.witness.values["element"] == "[3, 0]"
    assert both.grid_point == (2,)
    assert both.cause == "its condition is false at a grid point"
