"""Rerun of a kernel in HLO interpret mode, only where something may have failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug._api.check import Report
from pallas_debug.bridge.instrument import again
from pallas_debug.bridge.instrument.recording import CERTAIN, PERHAPS, READ
from pallas_debug.bridge.instrument.sites import Site, SiteFailure

X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128)
ROWS = pl.BlockSpec((4, 128), lambda i: (i, 0))


@pytest.fixture
def second_runs(monkeypatch: pytest.MonkeyPatch) -> list[again.SecondRun]:
    """What each second run saw."""
    seen: list[again.SecondRun] = []
    run = again.Again.run

    def run_and_keep(self: Any, args: Any, results: Any) -> again.SecondRun:
        seen.append(run(self, args, results))
        return seen[-1]

    monkeypatch.setattr(again.Again, "run", run_and_keep)
    return seen


def over_blocks(kernel: Callable[..., None], *, rows: int = 16) -> Callable[..., Any]:
    shape = jax.ShapeDtypeStruct((rows, 128), jnp.float32)
    grid = (pl.cdiv(rows, 4),)
    return pl.pallas_call(kernel, out_shape=shape, grid=grid, in_specs=[ROWS], out_specs=ROWS)


def checked(function: Callable[..., Any], *args: Any) -> Report:
    report, _ = pallas_debug.check(function, interpret="hlo")(*args)
    return report


def roots(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.sqrt(x_ref[...])


def doubles_without_padding(x_ref: Any, o_ref: Any) -> None:
    rows = lax.broadcasted_iota(jnp.int32, (4, 128), 0) + 4 * pl.program_id(0)
    o_ref[...] = jnp.where(rows < 14, x_ref[...], 0.0) * 2.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "function, x, runs, failures",
    [
        pytest.param(over_blocks(roots), X, [], 0, id="nothing fails"),
        pytest.param(over_blocks(roots), X - 1, [True], 1, id="it fails"),
        pytest.param(
            over_blocks(doubles_without_padding, rows=14), X[:14], [], 0, id="masked padding"
        ),
        pytest.param(over_blocks(roots, rows=14), X[:14], [True], 0, id="padding in the padding"),
        pytest.param(over_blocks(roots), X.at[0, 0].set(jnp.nan), [True], 0, id="a NaN is given"),
    ],
)
def test_when_it_runs_again(
    function: Any, x: jax.Array, runs: list[bool], failures: int, second_runs: list[again.SecondRun]
) -> None:
    report = checked(jax.jit(function), x)
    assert report.not_checked == ()
    assert len(report.findings) == failures
    assert [seen.is_same for seen in second_runs] == runs


@pytest.mark.slow
def test_it_is_compiled_once_for_all_launches(
    monkeypatch: pytest.MonkeyPatch, second_runs: list[again.SecondRun]
) -> None:
    compiled = []
    compile_ = again.Again._compile
    monkeypatch.setattr(
        again.Again, "_compile", lambda self, args: compiled.append(1) or compile_(self, args)
    )

    def thrice(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, i: (c, over_blocks(roots)(c - i)), x, jnp.arange(3.0))[1]

    (finding,) = checked(jax.jit(thrice), X).findings
    assert (finding.kind, finding.count) == ("NanProduced", 2)
    assert (len(second_runs), len(compiled)) == (2, 1)


def prints(x_ref: Any, o_ref: Any) -> None:
    pl.debug_print("x = {}", x_ref[0, 0])
    o_ref[...] = jnp.sqrt(x_ref[...])


@pytest.mark.slow
def test_what_prints_is_run_once(second_runs: list[again.SecondRun]) -> None:
    report = checked(over_blocks(prints), X - 1)
    assert [record.text for record in report.prints] == [
        f"x = {n}" for n in ("-1.0", "511.0", "1023.0", "1535.0")
    ]
    assert [finding.kind for finding in report.findings] == ["NanProduced"]
    assert second_runs == []


@pytest.mark.slow
def test_operands_of_all_kinds_are_handed_on(second_runs: list[again.SecondRun]) -> None:
    """A grid of a size that is known late, a table, and narrow floats."""

    def kernel(table_ref: Any, x_ref: Any, small_ref: Any, o_ref: Any) -> None:
        index = table_ref[pl.program_id(0)]
        o_ref[...] = x_ref[pl.ds(index, 4), :] + small_ref[...].astype(jnp.float32)

    def function(n: jax.Array, table: jax.Array, x: jax.Array, small: jax.Array) -> jax.Array:
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n,),
            in_specs=[
                pl.BlockSpec((16, 128), lambda i, table: (0, 0)),
                pl.BlockSpec((4, 128), lambda i, table: (0, 0)),
            ],
            out_specs=pl.BlockSpec((4, 128), lambda i, table: (i, 0)),
        )

        shape = jax.ShapeDtypeStruct((16, 128), jnp.float32)
        return pl.pallas_call(kernel, out_shape=shape, grid_spec=spec)(table, x, small)

    small = jnp.ones((4, 128), jnp.bfloat16)
    report = checked(jax.jit(function), jnp.int32(4), jnp.array([0, 4, 13, 8]), X, small)
    (finding,) = report.findings
    assert (finding.kind, finding.grid_point) == ("OutOfBoundsRead", (2,))
    assert finding.values == {"index": "13", "index from": "table_ref[2]"}
    assert [seen.is_same for seen in second_runs] == [True]


@pytest.mark.slow
def test_several_that_fail_in_one_program() -> None:
    """Their callbacks hold threads of the runtime, which the second runs do not wait for."""

    def many(x: jax.Array) -> list[jax.Array]:
        return [over_blocks(roots)(x - n) for n in range(1, 7)]

    report = checked(jax.jit(many), X)
    assert [finding.count for finding in report.findings] == [6]


# What a second run may fail to see.


def of_check(check: str) -> SiteFailure:
    site = Site(check=check, operation="", source=None)
    return SiteFailure(site=site, count=1, order=(), grid_point=(), loops=(), values=())


@pytest.mark.parametrize(
    "tripped, failures, is_same, misses",
    [
        (CERTAIN, ["user"], True, False),
        (CERTAIN, ["nan"], True, True),
        (CERTAIN | PERHAPS, ["index", "nan"], False, False),
        (CERTAIN, [], True, True),
        (PERHAPS, [], True, False),
        (PERHAPS, [], False, True),
        (READ, ["uninitialized"], False, False),
    ],
)
def test_what_counts_as_missed(
    tripped: int, failures: Sequence[str], is_same: bool, misses: bool
) -> None:
    seen = again.SecondRun(failures=[of_check(check) for check in failures], is_same=is_same)
    assert seen.misses(tripped) is misses


def checks_the_first(x_ref: Any, o_ref: Any) -> None:
    checkify.check(x_ref[0, 0] > 0, "not positive")
    o_ref[...] = x_ref[...]


def test_a_second_run_that_sees_nothing_is_no_clean_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = again.SecondRun(failures=(), is_same=True)
    monkeypatch.setattr(again.Again, "run", lambda *_: nothing)
    report = checked(over_blocks(checks_the_first), X)
    assert report.not_checked == (
        "kernel `checks_the_first` was not checked: a check failed in it, and not again in the "
        "second run that says which one. The absence of findings in it proves nothing.",
    )
    assert not report.ok


@pytest.mark.parametrize("kernel", [checks_the_first, roots])
def test_nor_is_one_that_raises(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    def refuse(*_: Any) -> again.SecondRun:
        raise MemoryError("too large")

    monkeypatch.setattr(again.Again, "run", refuse)
    report = checked(over_blocks(kernel), -1 - X)
    assert report.not_checked == (
        f"kernel `{kernel.__name__}` was not checked: a check failed in it, with "
        "MemoryError in the second run that says which one: too large. "
        "The absence of findings in it proves nothing.",
    )
    np.testing.assert_array_equal(report.findings, ())
