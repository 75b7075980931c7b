"""An output that nothing uses need not be written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.verdict import Request, Verdict, Verifier, verify
from pallas_debug.verdict.formats import sarif

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


def judged(function: Any) -> Verdict:
    return verify(function, X, engines="static,machine", targets="v5e")


def test_an_output_that_nothing_uses_is_no_fault() -> None:
    verdict = judged(unused)
    assert verdict.findings == ()
    assert {o.status for o in verdict.outcomes} == {"ok"}


@pytest.mark.slow
def test_one_that_is_used_anywhere_is_found() -> None:
    for function in (top, used):
        (finding,) = judged(function).findings
        assert (finding.kind, finding.operand) == ("OutputNotWritten", "best_ref")


def eager(x: jax.Array) -> jax.Array:
    """Drops an output in Python, and reads another: no program shows what it uses."""
    doubled, _ = top(x)
    assert float(doubled[0, 0]) == 2
    return doubled


ONES = jnp.ones((16, 128))

CONDITION = "the caller of the kernel uses result [1] of 2"


def checked(function: Any) -> pallas_debug.Report:
    report, _ = pallas_debug.check(function, sanitize=True)(ONES)
    return report


@pytest.mark.slow
def test_what_changes_no_result_of_the_function_does_not_count() -> None:
    assert checked(eager).findings == ()


def test_all_outputs_count_if_none_is_written() -> None:
    def nothing(x: jax.Array) -> None:
        def nothing(x_ref: Any, a_ref: Any, b_ref: Any) -> None:
            pass

        a, _ = pl.pallas_call(nothing, out_shape=(x, x))(x)
        a.block_until_ready()

    report, _ = pallas_debug.check(nothing, sanitize=True)(ONES)
    assert [(f.operand, f.only_if) for f in report.findings] == [("a_ref", None), ("b_ref", None)]


def program(line: str) -> Verdict:
    def run() -> None:
        np.asarray(line_of[line](ONES))

    line_of = {"jitted": jax.jit(unused), "used": jax.jit(used), "eager": eager}
    return Verifier(line).of_program(run, Request(engines="static,machine"))


def test_a_script_that_stops_after_a_finding_was_not_judged_to_its_end() -> None:
    def run() -> BaseException | None:
        np.asarray(jax.jit(used)(ONES))
        try:
            raise ValueError("wrong results")
        except ValueError as error:
            return error

    request = Request(engines="machine")
    verdict = Verifier("script").of_program(run, request)
    (problem,) = verdict.problems
    assert verdict.findings
    assert problem.startswith("what the program runs after ")
    assert problem.endswith(", where it stopped: ValueError: wrong results")
    assert "test_unused.py:" in problem
    assert not Verifier("script").of_program(lambda: run() and None, request).problems


@pytest.mark.slow
def test_a_script_is_judged_by_its_programs() -> None:
    verdict = program("jitted")
    assert verdict.findings == ()
    assert {o.status for o in verdict.outcomes} == {"ok"}
    verdict = program("used")
    (finding,) = verdict.findings
    assert finding.only_if is None
    assert set(finding.engines) == {"machine", "static"}
    assert not verdict.ok
    verdict = program("eager")
    (finding,) = verdict.findings
    assert finding.only_if == CONDITION
    assert verdict.ok
    assert "1 finding on an unknown condition, not counted; nothing else found" in str(verdict)
    (result,) = sarif.sarif(verdict)["runs"][0]["results"]
    assert (result["level"], result["properties"]["onlyIf"]) == ("warning", finding.only_if)


HBM = pl.BlockSpec(memory_space=pltpu.HBM)


def staged(x_ref: Any, o_ref: Any) -> None:
    """Leaves the first 8 rows of its output unwritten."""
    pltpu.sync_copy(x_ref, o_ref.at[pl.ds(8, 16)])


def copied(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def calls_staged(x: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct((24, 128), x.dtype)
    return pl.pallas_call(staged, out_shape=out, in_specs=[HBM], out_specs=HBM)(x)


def calls_short(x: jax.Array) -> jax.Array:
    """Leaves the last 8 rows of its output unvisited."""
    out, rows = jax.ShapeDtypeStruct((24, 128), x.dtype), pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(copied, out_shape=out, grid=(2,), in_specs=[rows], out_specs=rows)(x)


def twice(x: jax.Array) -> Any:
    y = jax.jit(calls_staged)(x)
    return y[8:] * y[10:11]


def twice_and_whole(x: jax.Array) -> Any:
    y = jax.jit(calls_staged)(x)
    return y[8:], y


@pytest.mark.slow
@pytest.mark.parametrize(
    "function,broken",
    [
        (lambda x: calls_staged(x)[8:] + 1, lambda x: calls_staged(x)[7:] + 1),
        (jax.jit(lambda x: calls_staged(x)[8:]), jax.jit(calls_staged)),
        (twice, twice_and_whole),
        (lambda x: calls_short(x)[:16], lambda x: calls_short(x)[:17]),
    ],
)
def test_a_part_that_nothing_uses_need_not_be_written(function: Any, broken: Any) -> None:
    x = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    verdict = verify(function, x, engines="static,machine")
    assert verdict.ok, str(verdict)
    (finding,) = verify(broken, x, engines="static,machine").findings
    assert finding.kind == "OutputNotWritten"
    assert finding.counts
