"""Causes and advice that depend on what a run shows: memory, tables and ragged blocks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

from pallas_debug.findings.faults import Fault

F32, I32 = jnp.float32, jnp.int32
BINS = 128
X = np.random.default_rng(0).standard_normal((56, 128)).astype(np.float32)


@called(
    jax.ShapeDtypeStruct((1, BINS), I32),
    grid=(2,),
    in_specs=[pl.BlockSpec((32, 1), lambda i: (i, 0))],
    out_specs=pl.BlockSpec((1, BINS), lambda i: (0, 0)),
)
def histogram(x_ref, out_ref, *, limit):
    """How often each number occurs, in blocks of 32 of which the last is ragged."""
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _start() -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

    bins = lax.broadcasted_iota(I32, (32, BINS), 1)
    rows = i * 32 + lax.broadcasted_iota(I32, (32, BINS), 0)
    hits = (x_ref[...] == bins) & (rows < limit)
    out_ref[...] += jnp.sum(hits.astype(I32), axis=0, keepdims=True)


NUMBERS = np.random.default_rng(0).integers(0, BINS, (50, 1)).astype(np.int32)


def test_padding_is_counted_if_it_holds_a_number_that_occurs() -> None:
    assert not found(lambda x: histogram(x, limit=50), NUMBERS)
    (padding,) = found(lambda x: histogram(x, limit=1000), NUMBERS)
    assert padding.kind is Fault.PADDING_READ
    assert padding.message == (
        "padding of x_ref is read and reaches an output: 14 of 32 elements, starting with "
        "x_ref[18, 0]"
    )


@called(
    grid=(7,),
    block=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    scratch_shapes=[pltpu.SMEM((1,), I32)],
)
def flagged(x_ref, out_ref, flag_ref, *, sets, first):
    """Copies rows; the first time, as a flag in scratch says, it adds one."""
    if sets:

        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            flag_ref[0] = first

    out_ref[...] = x_ref[...]

    @pl.when(flag_ref[0] == first)
    def _first() -> None:
        out_ref[...] += 1
        flag_ref[0] = first + 1


@pytest.mark.parametrize("first", [0, 1, 12345])
def test_scratch_may_hold_the_number_that_a_flag_is_compared_with(first: int) -> None:
    assert not found(lambda x: flagged(x, sets=True, first=first), X)
    (unwritten,) = found(lambda x: flagged(x, sets=False, first=first), X)
    assert (unwritten.kind, unwritten.operand) == (Fault.UNINITIALIZED_READ, "flag_ref")


@called(
    jax.ShapeDtypeStruct((32, 128), F32),
    grid=(2, 2),
    in_specs=[pl.BlockSpec((8, 128), lambda k, i: (2 * i + k, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda k, i: (2 * i + k, 0)),
    scratch_shapes=[pltpu.VMEM((2, 8, 128), F32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "parallel")),
)
def sums_of_lanes(x_ref, out_ref, acc_ref, *, slots):
    """Sums over the first axis of the grid, which several cores may share along the second."""
    slot = lax.rem(pl.program_id(1), slots)

    @pl.when((pl.program_id(0) == 0) & (slot == pl.program_id(1)))
    def _start() -> None:
        acc_ref[slot] = jnp.zeros((8, 128), F32)

    acc_ref[slot] += x_ref[...]
    out_ref[...] = acc_ref[slot]


def test_a_slot_for_each_step_of_a_parallel_axis_within_a_sequential_one() -> None:
    assert found(functools.partial(sums_of_lanes, slots=2), X[:32]) == ()
    (read,) = found(functools.partial(sums_of_lanes, slots=1), X[:32])
    assert (read.kind, read.grid_point) == (Fault.UNINITIALIZED_READ, (0, 1))
    assert read.cause == (
        "grid dimension 1 is parallel: another core may have written it, at (0, 0)"
    )
    assert read.advice == (
        "write it where each core begins: @pl.when(pl.program_id(0) == 0), or make the dimension "
        '"arbitrary"'
    )
