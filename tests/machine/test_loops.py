"""Long loops run compiled, with the results and the faults of a run step by step."""

from __future__ import annotations

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
from machine_runs import decoded

from pallas_debug.findings.faults import Fault
from pallas_debug.machine import loops, run
from pallas_debug.machine.run import MachineRun
from pallas_debug.machine.sanitizer import areas

STEPS = 300
ROWS = np.arange(STEPS * 128, dtype=np.float32).reshape(STEPS, 128) % 251


def copy_rows(x_ref: jax.Ref, o_ref: jax.Ref, _: jax.Ref) -> None:
    def body(i: Any, carry: Any) -> Any:
        o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(i, 1), :] * 2 + 1
        return carry

    lax.fori_loop(0, STEPS, body, 0)


def carry_a_row(x_ref: jax.Ref, o_ref: jax.Ref, _: jax.Ref) -> None:
    def body(i: Any, row: Any) -> Any:
        row = row * 0.5 + x_ref[i, :]
        o_ref[i, :] = row
        return row

    lax.fori_loop(0, STEPS, body, jnp.zeros((128,), jnp.float32))


def of_dynamic_length(x_ref: jax.Ref, o_ref: jax.Ref, _: jax.Ref) -> None:
    def body(i: Any, total: Any) -> Any:
        o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(i, 1), :] + total
        return total + 1.0

    o_ref[...] = jnp.zeros_like(o_ref)
    lax.fori_loop(0, jnp.int32(x_ref[2, 0]) + 100, body, 0.0)


def sum_in_memory(x_ref: jax.Ref, o_ref: jax.Ref, state_ref: jax.Ref) -> None:
    state_ref[...] = jnp.zeros_like(state_ref)

    def body(i: Any, carry: Any) -> Any:
        state_ref[...] += x_ref[pl.ds(i // 8 * 8, 8), :]
        return carry

    lax.fori_loop(0, STEPS - 4, body, 0)
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[0:8, :] = state_ref[...]


def past_the_end(x_ref: jax.Ref, o_ref: jax.Ref, _: jax.Ref) -> None:
    def body(i: Any, carry: Any) -> Any:
        o_ref[pl.ds(i, 1), :] = x_ref[pl.ds(i + 1, 1), :]
        return carry

    lax.fori_loop(0, STEPS, body, 0)


def reads_before_writing(x_ref: jax.Ref, o_ref: jax.Ref, state_ref: jax.Ref) -> None:
    def body(i: Any, carry: Any) -> Any:
        o_ref[i, :] = state_ref[i // 200, :] + x_ref[i, :]
        return carry

    state_ref[0, :] = x_ref[0, :]
    lax.fori_loop(0, STEPS, body, 0)


def makes_a_nan(x_ref: jax.Ref, o_ref: jax.Ref, _: jax.Ref) -> None:
    def body(i: Any, carry: Any) -> Any:
        o_ref[i, :] = jnp.sqrt(x_ref[i, :] + 200.0 - i.astype(jnp.float32))
        return carry

    lax.fori_loop(0, STEPS, body, 0)


KERNELS = [copy_rows, carry_a_row, of_dynamic_length, sum_in_memory]


def ran(
    kernel: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    *,
    compiled: bool,
    sanitized: bool = False,
) -> MachineRun:
    function = called(scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)])(kernel)
    chunks = []
    launch = decoded(function, [ROWS])
    with monkeypatch.context() as patch:
        if not compiled:
            patch.setattr(loops, "MIN_ITERATIONS", 1 << 30)
        run_ = loops._run
        patch.setattr(loops, "_run", lambda *args: chunks.append(1) or run_(*args))
        observers = areas.observers(launch, [[ROWS]]) if sanitized else []
        done = run.run(launch, [[ROWS]], observers=observers)
    assert bool(chunks) == compiled
    return done


def facts(done: MachineRun) -> Any:
    return [(f.kind, f.source, f.grid_point, f.loop, f.index, f.message) for f in done.findings]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_sanitizer_finds_nothing_in_correct_loops(
    kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ran(kernel, monkeypatch, compiled=c, sanitized=True) for c in (True, False))
    assert not one.findings
    assert one.hints == other.hints
    np.testing.assert_array_equal(one.results[0][0], other.results[0][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, kind",
    [(reads_before_writing, Fault.UNINITIALIZED_READ), (makes_a_nan, Fault.NAN_PRODUCED)],
)
def test_the_sanitizer_finds_the_same_in_compiled_loops(
    kernel: Callable[..., None], kind: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (ran(kernel, monkeypatch, compiled=c, sanitized=True) for c in (True, False))
    assert [finding.kind for finding in one.findings] == [kind]
    assert facts(one) == facts(other)


def test_a_fault_is_reported_as_in_a_run_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (ran(past_the_end, monkeypatch, compiled=c) for c in (True, False))
    assert facts(one) == facts(other)
    assert one.stopped.loop == (STEPS - 1,)
