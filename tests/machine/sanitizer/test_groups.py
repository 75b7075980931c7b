"""Sums of groups of steps that a table lists: stored too early, and states that data ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

GROUPS = (0, 0, 0, 1, 1, 2, 2, 2, 2)
X = np.random.default_rng(0).standard_normal((8 * len(GROUPS), 128)).astype(np.float32)

When = Callable[[Any, Any, Any, Any], Any]
"""Whether to store, from the numbers of the group, as a function of the step; the step; the number
of the last step; and the flag of the step.
"""


def last(group: Any, s: Any, end: Any, flag: Any) -> Any:
    return (s == end) | (group(jnp.minimum(s + 1, end)) != group(s))


def one_early(group: Any, s: Any, end: Any, flag: Any) -> Any:
    ends = group(jnp.minimum(s + 2, end)) != group(jnp.minimum(s + 1, end))
    return (s + 1 == end) | (ends & (group(jnp.minimum(s + 1, end)) == group(s)))


def first(group: Any, s: Any, end: Any, flag: Any) -> Any:
    return (s == 0) | (group(jnp.maximum(s - 1, 0)) != group(s))


def flagged(group: Any, s: Any, end: Any, flag: Any) -> Any:
    return flag > 0


def sums(
    when: When, *, groups: Sequence[int] = GROUPS, flags: Sequence[int] = (), before: bool = False
) -> Callable[..., Any]:
    """Sum the blocks of each group.

    Args:
      flags: steps with a flag, in the same table as the groups.
      before: whether the sum is stored before the addition of the same step.
    """
    marks = np.isin(np.arange(len(groups)), flags)
    table = np.array([2 * group + int(mark) for group, mark in zip(groups, marks, strict=True)])

    def kernel(table_ref: Any, x_ref: Any, o_ref: Any, acc: Any) -> None:
        s, end = pl.program_id(0), pl.num_programs(0) - 1

        def group(step: Any) -> Any:
            return table_ref[step] // 2

        def add() -> None:
            acc[...] += x_ref[...]

        @pl.when(first(group, s, end, 0))
        def _start() -> None:
            acc[...] = jnp.zeros_like(acc)

        if not before:
            add()

        @pl.when(when(group, s, end, table_ref[s] % 2))
        def _store() -> None:
            o_ref[...] = acc[...]

        if before:
            add()

    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(groups),),
            in_specs=[pl.BlockSpec((8, 128), lambda s, table: (s, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda s, table: (table[s] // 2, 0)),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((8 * (max(groups) + 1), 128), jnp.float32),
    )
    return lambda x: call(jnp.asarray(table, jnp.int32), x)


@pytest.mark.parametrize(
    "function", [sums(one_early), sums(first), sums(one_early, groups=(0, 0, 1, 1, 2, 2, 3, 3))]
)
def test_a_sum_that_is_stored_before_its_last_addition(function: Callable[..., Any]) -> None:
    (finding,) = found(function, X)
    assert (finding.kind, finding.operand) == ("LostWrite", "acc")
    assert finding.source is not None
    assert finding.source.text == "o_ref[...] = acc[...]"
    assert finding.cause == "block (0, 0) of o_ref was stored before that addition but not after it"
    assert finding.advice == "store it at the last step of each block, after the last addition"
    assert finding.other is not None
    assert finding.other.text == "acc[...] += x_ref[...]"


@pytest.mark.parametrize(
    "function",
    [
        sums(last),
        sums(last, before=True),
        # A flag asks for the state at some step of each group.
        sums(flagged, flags=(1, 3, 5)),
        sums(flagged, flags=(0, 3, 7)),
        # Two groups of equal length could end early by chance.
        sums(flagged, groups=(0, 0, 0, 1, 1, 1), flags=(1, 4)),
    ],
)
def test_healthy_groups(function: Callable[..., Any]) -> None:
    assert not found(function, X)
