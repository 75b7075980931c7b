"""Scalar prefetch determined by the arguments: judged before anything runs, unlike any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_kernels import broken
from jax.experimental import pallas as pl

from pallas_debug.model import Finding
from pallas_debug.verdict import Verdict, verify

PAGES = broken("page_past_the_pool")
TABLE, POOL = PAGES.make_args()
UNKNOWN = jax.ShapeDtypeStruct(TABLE.shape, TABLE.dtype)
NOT_JUDGED = ("the index map of page_ref: it reads page_table_ref, whose values are unknown",)

gather = PAGES.function


def judged(function: Callable[..., Any], *args: Any) -> Verdict:
    return verify(function, *args, targets="v5e", engines="static")


def not_judged(verdict: Verdict) -> tuple[str, ...]:
    return tuple(gap.reason for outcome in verdict.outcomes for gap in outcome.gaps)


def only(verdict: Verdict) -> Finding:
    (finding,) = verdict.findings
    assert (finding.kind, finding.engines) == ("BlockOutOfBounds", ("static",))
    return finding


def made_up(table: Any, pool: Any) -> Any:
    return gather(jnp.cumsum(table) - jnp.arange(3), pool)


def written_down(pool: Any) -> Any:
    return gather(jnp.array([2, 0, 9]), pool)


def in_a_scan(table: Any, pool: Any) -> Any:
    return jax.lax.scan(lambda c, _: (c, gather(table, pool)), 0, None, length=2)[1]


@pytest.mark.parametrize(
    "function, args, point",
    [
        (jax.jit(gather), (TABLE, POOL), (2,)),
        (made_up, (np.array([1, 1, 6], np.int32), POOL), (2,)),
        (written_down, (POOL,), (2,)),
        (in_a_scan, (TABLE, POOL), (2,)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_arguments_and_constants_lead_to_is_computed(
    function: Callable[..., Any], args: tuple[Any, ...], point: tuple[int, ...]
) -> None:
    assert only(judged(function, *args)).grid_point == point


def in_a_branch(table: Any, flag: Any, pool: Any) -> Any:
    return jax.lax.cond(flag, lambda: gather(table, pool), lambda: pool[:3])


def in_a_loop(table: Any, n: Any, pool: Any) -> Any:
    return jax.lax.fori_loop(0, n, lambda i, out: out + gather(table, pool), pool[:3])


def of_another_kernel(table: Any, pool: Any) -> Any:
    def double(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    return gather(pl.pallas_call(double, out_shape=table)(table), pool)


@pytest.mark.parametrize(
    "function, args",
    [
        (in_a_branch, (TABLE, np.bool_(True), POOL)),
        (in_a_loop, (TABLE, np.int32(2), POOL)),
        (of_another_kernel, (TABLE, POOL)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_they_do_not_decide_is_not(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    verdict = judged(function, *args)
    assert verdict.ok, str(verdict)
    assert set(not_judged(verdict)) >= set(NOT_JUDGED)


def test_each_call_is_judged_with_its_own_table() -> None:
    finding = only(judged(lambda t, p: (gather(t * 0, p), gather(t, p)), TABLE, POOL))
    assert finding.grid_point == (2,)
    verdict = judged(lambda t, u, p: (gather(t, p), gather(u, p)), TABLE, UNKNOWN, POOL)
    assert only(verdict).grid_point == (2,)
    assert not_judged(verdict) == NOT_JUDGED


def test_a_slice_in_the_body_is_judged_too() -> None:
    ends = broken("scalar_read_past_the_end")
    (finding,) = judged(ends.function, *ends.make_args()).findings
    assert (finding.kind, finding.grid_point) == ("OutOfBoundsRead", (1,))
