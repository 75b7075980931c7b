"""Causes that hold for the kernel at hand, whichever engine states them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.verdict import verify

S = jax.ShapeDtypeStruct
F32 = jnp.float32

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def pairs(x: Any) -> Any:
    """Adds pairs of blocks; `out_shape` should have half the rows."""

    def add_pairs(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[0:8, :] + x_ref[8:16, :]

    return pl.pallas_call(
        add_pairs,
        out_shape=S(x.shape, F32),
        grid=(x.shape[0] // 16,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )(x)


@pytest.mark.parametrize("engine", ["static", "machine"])
def test_blocks_that_no_grid_point_visits(engine: str) -> None:
    (finding,) = verify(pairs, S((64, 128), F32), engines=engine).findings
    assert finding.kind == "OutputNotWritten"
    assert finding.cause == (
        "no grid point visits it: the grid has too few steps, or the index map leaves blocks out"
    )
    assert finding.source is not None
    assert "out_specs=" in (finding.source.text or "")


def sums(x: Any) -> Any:
    """Stores its sum at a step that never comes."""

    def add_up(x_ref: Any, o_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]

        @pl.when(pl.program_id(1) == pl.num_programs(1))
        def _store() -> None:
            o_ref[...] = sum_ref[...]

    return pl.pallas_call(
        add_up,
        out_shape=S((x.shape[0], 128), F32),
        grid=(x.shape[0] // 8, x.shape[1] // 128),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


def test_a_sum_that_is_never_stored_is_not_said_to_be_stored_too_early() -> None:
    verdict = verify(sums, S((24, 384), F32), engines="machine")
    assert [finding.kind for finding in verdict.findings] == ["OutputNotWritten"]


class PairSum:
    """A kernel's caller with settings, as layers are written."""

    def __call__(self, x: Any, *, rows: int = 32) -> Any:
        return pairs(x[:rows])


def test_callable_objects_and_partials_are_named_without_addresses() -> None:
    for function in (PairSum(), functools.partial(PairSum(), rows=64)):
        assert verify(function, S((64, 128), F32), engines="static").name == "PairSum"
