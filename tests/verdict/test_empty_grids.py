"""Grids without points: the kernel's body does not run, and nothing judges it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.cli.exits import Exit
from pallas_debug.cli.verify import exit_code
from pallas_debug.verdict import verify

S = jax.ShapeDtypeStruct
X = S((16, 128), jnp.float32)
N = S((), jnp.int32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def some_rows(x: Any, n: Any) -> Any:
    """Doubles the first `n` blocks of rows in place."""
    call = pl.pallas_call(
        double,
        out_shape=S(x.shape, x.dtype),
        grid=(n,),
        in_specs=[ROWS],
        out_specs=ROWS,
        input_output_aliases={0: 0},
    )
    return call(x)


def whole_blocks(x: Any) -> Any:
    return pl.pallas_call(
        double, out_shape=X, grid=(x.shape[0] // 32,), in_specs=[ROWS], out_specs=ROWS
    )(x)


def test_a_size_that_was_made_up_judges_nothing() -> None:
    verdict = verify(some_rows, X, N, engines="machine")
    reason = "its grid of (0,) has no points: its body did not run"
    assert {(o.status, o.reason) for o in verdict.outcomes if o.kernel} == {("unjudged", reason)}
    assert not verdict.ok
    assert exit_code(verdict) == Exit.CANNOT_RUN
    assert "n (int32[], zeros)" in verdict.notes[0]


def test_a_grid_without_points_says_so() -> None:
    verdict = verify(whole_blocks, X, engines="static,machine")
    static, machine = (o for o in verdict.outcomes if o.kernel)
    assert (static.status, machine.status) == ("found", "found")
    assert [gap.reason for gap in static.gaps] == [
        "index maps and accesses: its grid has no points"
    ]
    (finding,) = verdict.findings
    assert finding.kind == "OutputNotWritten"
    assert finding.engines == ("static", "machine")
    assert str(finding.cause).startswith("no grid point visits it")


@pytest.mark.parametrize("engine", ["static", "machine"])
def test_a_size_of_zero_leaves_the_outputs_unwritten(engine: str) -> None:
    def new_rows(x: Any, n: Any) -> Any:
        out = S(x.shape, x.dtype)
        return pl.pallas_call(double, out_shape=out, grid=(n,), in_specs=[ROWS], out_specs=ROWS)(x)

    (finding,) = verify(new_rows, X, jnp.int32(0), engines=engine).findings
    assert finding.message.startswith("nothing writes o_ref[0:16, 0:128]")
    assert str(finding.cause).startswith("no grid point visits it")
    assert not verify(some_rows, X, jnp.int32(0), engines=engine).findings
    assert verify(new_rows, X, jnp.int32(2), engines=engine).ok


def test_check_is_not_green_without_a_step() -> None:
    checked = pallas_debug.check(jax.jit(some_rows))
    x = jnp.ones(X.shape)
    for size, is_judged in ((0, False), (2, True), (0, False)):  # the program is compiled once
        report, _ = checked(x, jnp.int32(size))
        assert report.ok is is_judged
    (sentence,) = report.not_checked
    assert "its grid of (0,) has no points: its body did not run" in sentence
