"""Findings that rest on made-up values: what they say, and that they do not count."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import defaults
from pallas_debug.cli.exits import Exit
from pallas_debug.cli.verify import exit_code
from pallas_debug.errors import UsageError, VerificationFailed
from pallas_debug.render import REAL_INPUTS
from pallas_debug.verdict import Verdict, verify
from pallas_debug.verdict.formats.sarif import sarif

Shape = jax.ShapeDtypeStruct
X = Shape((8, 128), "float32")
N = Shape((1,), "int32")


def attend(lengths: Any, batch: Any) -> Any:
    def logs(n_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros((8, 128))
        o_ref[0, :] = x_ref[pl.ds(n_ref[0] - 1, 1), :][0]
        o_ref[1, :] = y_ref[pl.ds(pl.program_id(0) * 5 + 4, 1), :][0]

    block = pl.BlockSpec((8, 128), lambda i: (0, 0))
    return pl.pallas_call(
        logs,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), block, block],
        out_specs=block,
        out_shape=X,
    )(lengths, batch["x"], batch["x"])


def judged(*args: Any, engines: str = "static,machine") -> Verdict:
    return verify(attend, *args, targets="v5e", engines=engines)


def by_kind(verdict: Verdict) -> list[tuple[str, tuple[str, ...]]]:
    return [(str(f.kind), f.made_up) for f in verdict.findings]


LENGTHS, BATCH = "lengths (int32[1], zeros)", "batch['x'] (float32[8,128], random normal)"


@pytest.mark.slow
def test_what_rests_on_them_says_so_and_comes_last() -> None:
    verdict = judged(N, {"x": X})
    assert by_kind(verdict) == [
        ("OutOfBoundsRead", ()),  # at a grid point, whatever the values
        ("OutOfBoundsRead", (LENGTHS,)),
    ]
    assert [len(verdict.findings), len(verdict.counted)] == [2, 1]
    assert not verdict.ok
    assert exit_code(verdict) == Exit.FAILED
    assert str(verdict).splitlines()[-1] == (
        "attend: 1 finding in 1 kernel; 1 finding on made-up values, not counted"
        "; values not judged (no reference)"
    )
    assert verdict.notes == (
        f"values were made up for {LENGTHS}: anything that depends on them is judged only for "
        f"these. Pass real ones: {REAL_INPUTS}",
    )


@pytest.mark.slow
def test_alone_they_do_not_fail() -> None:
    real = judged(jnp.array([12]), {"x": X})
    assert by_kind(real) == [("OutOfBoundsRead", ())] * 2

    def logs(x: Any) -> Any:
        def body(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.log(x_ref[...])

        return pl.pallas_call(body, out_shape=X)(x)

    verdict = verify(logs, X, targets="v5e", engines="machine")
    assert verdict.findings
    assert verdict.ok
    assert exit_code(verdict) == Exit.OK
    verdict.throw()
    text = str(verdict)
    assert (
        "  rests on made-up values of x (float32[8,128], random normal): pass real ones, by --arg "
        "or --inputs\n" in text
    )
    assert text.endswith(
        "logs: 1 finding on made-up values, not counted; nothing else found in 1 kernel; "
        "values not judged (no reference)"
    )
    (result,) = sarif(verdict)["runs"][0]["results"]
    assert result["level"] == "warning"
    assert result["properties"]["madeUp"] == ["x (float32[8,128], random normal)"]
    real = verify(logs, jnp.ones((8, 128)) - 2, targets="v5e", engines="machine")
    assert [f.made_up for f in real.findings] == [()]
    with pytest.raises(VerificationFailed):
        real.throw()


def test_arguments_too_large_to_fill_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_INPUT_BYTES", 1 << 10)
    with pytest.raises(UsageError, match=r"the argument batch\['x'\] takes 4 KiB, but an array"):
        judged(N, {"x": X})


def summed(lengths: Any, x: Any) -> Any:
    def rows(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def add(row: Any, total: Any) -> Any:
            return total + x_ref[row]

        o_ref[0] = jax.lax.fori_loop(0, n_ref[0], add, jnp.zeros(128))

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        rows, in_specs=[smem, pl.BlockSpec((8, 128))], out_shape=Shape((1, 128), "float32")
    )
    return call(lengths, x)


@pytest.mark.slow
def test_a_loop_that_they_keep_from_running_is_not_judged() -> None:
    verdict = verify(summed, N, X, targets="v5e", engines="static,machine")
    line = summed.__code__.co_firstlineno + 5
    reason = (
        f"the body of the loop at {__file__.rpartition('/')[2]}:{line}, which does not run with "
        "the values made up for lengths (int32[1], zeros)"
    )
    assert left_out(verdict) == {"machine": reason}
    assert exit_code(verdict) == Exit.OK
    verdict = verify(summed, jnp.array([8]), X, targets="v5e", engines="machine")
    assert left_out(verdict) == {}
    verdict = verify(summed, jnp.array([0]), X, targets="v5e", engines="machine")
    assert left_out(verdict) == {}  # given, and so judged as it is


def left_out(verdict: Verdict) -> dict[str, str]:
    """What was not judged, by engine."""
    return {gap.engine: gap.reason for outcome in verdict.outcomes for gap in outcome.gaps}
