"""Semaphores that the static analysis counts, and those that it cannot judge."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from analysis_runs import DMA, F32, HBM, REGULAR, TILE, Captures, copy_into, kinds, look, rows
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def test_a_wait_for_a_copy_that_was_never_started(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any, tile: Any, sem: Any) -> None:
        copy_into(x_ref.at[0:8], tile, sem).wait()
        out_ref[...] = jnp.zeros_like(out_ref)

    (finding,) = look(captures, kernel, in_specs=[HBM], scratch_shapes=[TILE, DMA]).findings
    assert finding.kind == "Deadlock"
    assert finding.message == "sem is at 0 bytes, but the wait needs 4,096 bytes"
    assert finding.cause == "no copy has been started on it before this wait"
    assert finding.advice == "start the copy before the wait, on the same semaphore"


@pytest.mark.parametrize("last", [0, 1])
def test_copies_in_a_loop_are_followed(captures: Captures, last: int) -> None:
    """The loop prefetches one block ahead; where `last` is 1 it does so at its last step too."""

    def kernel(x_ref: Any, out_ref: Any, tiles: Any, sems: Any) -> None:
        def copy(i: Any) -> Any:
            slot = lax.rem(i, 2)
            source = x_ref.at[pl.ds(jnp.minimum(i, 3) * 8, 8)]
            return copy_into(source, tiles.at[slot], sems.at[slot])

        def step(i: Any, _: None) -> None:
            @pl.when(i + 1 < 4 + last)
            def _next() -> None:
                copy(i + 1).start()

            copy(i).wait()
            out_ref[pl.ds(i * 8, 8), :] = tiles[lax.rem(i, 2)]

        copy(jnp.int32(0)).start()
        lax.fori_loop(0, 4, step, None)

    tiles = pltpu.VMEM((2, 8, 128), F32)
    analysis = look(captures, kernel, in_specs=[HBM], scratch_shapes=[tiles, DMA((2,))])
    assert analysis.gaps == ()
    assert kinds(analysis) == ["DmaNotAwaited"] * last
    if last:
        (finding,) = analysis.findings
        assert finding.loop == (3,)
        assert finding.message == (
            "the copy of x_ref to tiles is never waited for on sems[0]: 4,096 bytes are left on "
            "it when the kernel ends"
        )


@pytest.mark.parametrize("waits", [True, False])
def test_semaphores_of_a_scope_are_judged_within_it(captures: Captures, waits: bool) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        def scope(sem: Any) -> None:
            pl.semaphore_signal(sem, 3)
            if waits:
                pl.semaphore_wait(sem, 3)

        pl.run_scoped(scope, REGULAR)
        out_ref[...] = x_ref[...]

    assert kinds(look(captures, kernel, **rows(4))) == ([] if waits else ["SemaphoreLeftOver"])


def test_signals_are_added_up_over_the_whole_grid(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        pl.semaphore_signal(sem, 5)
        pl.semaphore_wait(sem, 2)
        out_ref[...] = x_ref[...]

    (finding,) = look(captures, kernel, **rows(4, 1000, scratch_shapes=[REGULAR])).findings
    assert finding.message == (
        "sem is 12000 at the end of the kernel, but must be 0: signals add up to 20000, waits to "
        "8000"
    )


def test_semaphores_under_a_condition_that_is_not_known_are_not_judged(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        @pl.when(jnp.sum(x_ref[...]) > 0)
        def _signal() -> None:
            pl.semaphore_signal(sem, 1)

        out_ref[...] = x_ref[...]

    analysis = look(captures, kernel, **rows(4, scratch_shapes=[REGULAR]))
    assert analysis.findings == ()
    assert tuple(gap.reason for gap in analysis.gaps) == (
        "the counts of sem: whether `signal` happens depends on unknown values",
    )


@pytest.mark.parametrize(
    "reason",
    [
        "the amount by which `signal` changes it is unknown",
        "which of them `signal` changes is unknown",
    ],
)
def test_a_signal_of_what_is_not_known_is_not_judged(captures: Captures, reason: str) -> None:
    def kernel(x_ref: Any, out_ref: Any, sems: Any) -> None:
        value = x_ref[0, 0].astype(jnp.int32)
        which, amount = (0, value) if reason.startswith("the amount") else (value, 1)
        pl.semaphore_signal(sems.at[which], amount)
        out_ref[...] = x_ref[...]

    analysis = look(captures, kernel, **rows(4, scratch_shapes=[pltpu.SemaphoreType.REGULAR((2,))]))
    assert tuple(gap.reason for gap in analysis.gaps) == (f"the counts of sems: {reason}",)


def test_semaphores_that_are_not_judged_for_one_reason_are_named_together(
    captures: Captures,
) -> None:
    def kernel(x_ref: Any, out_ref: Any, one: Any, two: Any) -> None:
        for sem in (one, two):
            pl.semaphore_signal(sem, x_ref[0, 0].astype(jnp.int32))
        out_ref[...] = x_ref[...]

    analysis = look(captures, kernel, **rows(4, scratch_shapes=[REGULAR, REGULAR]))
    (gap,) = analysis.gaps
    assert gap.reason == (
        "the counts of one and two: the amount by which `signal` changes it is unknown"
    )


def test_a_loop_that_is_too_long_to_follow_is_said(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any, tile: Any, sem: Any) -> None:
        def step(i: Any, _: None) -> None:
            copy = copy_into(x_ref.at[pl.ds(i % 4 * 8, 8)], tile, sem)
            copy.start()
            copy.wait()

        lax.fori_loop(0, 100_000, step, None)
        out_ref[...] = jnp.tile(tile[...], (4, 1))

    analysis = look(captures, kernel, in_specs=[HBM], scratch_shapes=[TILE, DMA])
    assert analysis.findings == ()
    assert tuple(gap.reason for gap in analysis.gaps) == (
        "the counts of sem: an enclosing loop is too long to be followed step by step",
    )
