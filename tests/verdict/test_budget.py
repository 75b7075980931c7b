"""A budget: the kernel that runs when it ends is judged by the grid points that ran, and no more."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.errors import UsageError
from pallas_debug.machine.pace import Pace
from pallas_debug.verdict import Verdict


@pytest.fixture(autouse=True)
def after_five_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget ends when five grid points have run."""
    left = property(lambda self: 0.0 if self.budget is not None and self.done >= 5 else 9.0)
    monkeypatch.setattr(Pace, "left", left)


X = np.arange(1.0, 1 + 64 * 128, dtype=np.float32).reshape(64, 128) / 100


def kernel(x_ref: Any, o_ref: Any, acc_ref: Any, *, wrong: int = -1, starts: bool = True) -> None:
    """Sum two halves of the columns of a block of rows."""
    block, step = pl.program_id(0), pl.program_id(1)

    if starts:

        @pl.when(step == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...]

    @pl.when(step == 1)
    def _() -> None:
        o_ref[...] = acc_ref[...] + jnp.where(block == wrong, 1.0, 0.0)


def halves(x: Any, *, out: Any = lambda i, j: (i, 0), **given: Any) -> Any:
    """Sum two copies of rows; a grid of 8×2 points, of which each pair completes a block."""
    return pl.pallas_call(
        lambda *refs: kernel(*refs, **given),
        grid=(8, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), out),
        out_shape=jax.ShapeDtypeStruct((64, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        name="halves",
    )(x)


def reference(x: Any) -> Any:
    return 2 * x


def verified(function: Any, reference: Any = reference, **options: Any) -> Verdict:
    options = {"targets": "v5e", "engines": "machine", "budget": 60.0, **options}
    return pallas_debug.verify(function, X, reference=reference, **options)


def signs(verdict: Verdict) -> dict[str, tuple[str, tuple[int, int] | None]]:
    return {o.column: (o.status, o.points) for o in verdict.outcomes if o.kernel}


def test_what_ran_is_judged_and_the_rest_is_named() -> None:
    verdict = verified(halves)
    assert signs(verdict) == {"machine": ("ok", (5, 16)), "values": ("unjudged", None)}
    assert not verdict.ok
    assert not verdict.findings
    table, _, rest = str(verdict).partition("\n\n")
    assert table.endswith("* of 5 of 16 grid points")
    assert table.count("ok*") == 1
    assert "11 of 16 grid points" in rest
    assert "not judged: halves values: the budget of 60 s ended in kernel `halves`" in rest
    assert rest.endswith("judged in part: machine; nothing found by the rest")


def test_only_what_the_rest_of_the_grid_cannot_undo_is_found() -> None:
    """The output is not written yet, and the accumulator not known to reach it."""
    assert not verified(lambda x: halves(x, starts=False), reference=None).findings

    def leaves_out(x: Any) -> Any:
        return halves(x, out=lambda i, j: (jnp.minimum(i, 3), 0))

    assert not verified(leaves_out, reference=None).findings


def test_a_fault_of_a_grid_point_that_ran_is_found() -> None:
    def past(x: Any) -> Any:
        def copy(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8, 16)][:8]

        return pl.pallas_call(
            copy,
            grid=(16,),
            in_specs=[pl.BlockSpec((24, 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32),
        )(x)

    verdict = verified(past, reference=None)
    assert [str(f.kind) for f in verdict.findings] == ["OutOfBoundsRead"]


def copied(x: Any) -> Any:
    def copy(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return pl.pallas_call(copy, out_shape=x, name="copied")(x)


def test_kernels_before_the_one_that_the_budget_ended_are_judged() -> None:
    verdict = verified(lambda x: halves(copied(x)))
    found = {o.kernel: o for o in verdict.outcomes if o.engine == "machine"}
    assert found["halves"].points == (5, 16)
    assert (found["copied"].status, found["copied"].points) == ("ok", None)
    (after,) = found["copied"].gaps
    assert after.reason == (
        "anything after the program stopped: the budget of 60 s ended in kernel `halves`"
    )
    assert not verdict.ok


def test_kernels_after_the_one_that_the_budget_ended_are_not_judged() -> None:
    verdict = verified(lambda x: copied(halves(x)))
    found = {(o.kernel, o.engine): o for o in verdict.outcomes if o.kernel}
    assert found["halves", "machine"].points == (5, 16)
    missing = found["copied", "machine"]
    assert missing.status == "unjudged"
    assert missing.reason is not None
    assert missing.reason.endswith("the budget of 60 s ended in kernel `halves`")
    assert found["halves", "values"].status == "unjudged"


def test_a_run_within_the_budget_is_judged_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    verdict = verified(halves, engines="machine")
    assert verdict.ok
    assert all(o.points is None for o in verdict.outcomes)


@pytest.mark.parametrize("budget", [0, -1.0])
def test_a_budget_is_a_time(budget: float) -> None:
    with pytest.raises(UsageError, match="greater than 0"):
        verified(halves, budget=budget)
