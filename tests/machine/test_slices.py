"""Backward slices of a kernel's program, through branches, scopes and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.slices import Follows, Slicer

X = np.ones((8, 128), np.float32)
NUMBERS = np.ones((8,), np.int32)


def program(kernel: Callable[..., None]) -> ir.KernelProgram:
    """The program of a kernel with an array, numbers in SMEM, an output and scratch."""
    return decoded(
        lambda x, n: pl.pallas_call(
            kernel,
            out_shape=x,
            in_specs=[pl.BlockSpec(x.shape), pl.BlockSpec(memory_space=pltpu.SMEM)],
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)],
        )(x, n),
        [X, NUMBERS],
    ).body


def loads(kernel: Callable[..., None], follows: Follows) -> dict[str, bool]:
    """Source lines of the loads behind the value of the last store, each with its alignment."""
    body = program(kernel)
    *_, store = (step for step in body.steps if isinstance(step, ir.StoreStep))
    found = Slicer(follows).behind(body, {store.value.number: True})
    lines: dict[str, bool] = {}
    for step, is_aligned in found.steps.values():
        if isinstance(step, ir.LoadStep):
            lines[str(step.site.line.text).partition("# ")[2]] = is_aligned
    return lines


def units(x_ref: Any, n_ref: Any, o_ref: Any, a_ref: Any) -> None:
    x = x_ref[...]  # x
    rest = a_ref[...]  # rest
    chosen = n_ref[0]  # chosen
    n_ref[1] = n_ref[2]  # not used
    o_ref[...] = jnp.where(chosen > 0, x * 2, jnp.flip(rest, 0))


def branches(x_ref: Any, n_ref: Any, o_ref: Any, a_ref: Any) -> None:
    index = n_ref[0]  # index
    o_ref[...] = lax.cond(
        n_ref[1] > 0,  # condition
        lambda: x_ref[...],  # taken
        lambda: a_ref[pl.ds(index, 8)],  # other
    )


def loops(x_ref: Any, n_ref: Any, o_ref: Any, a_ref: Any) -> None:
    def step(k: Any, carry: Any) -> Any:
        last, total = carry  # an iteration adds what the one before it has loaded
        following = x_ref[pl.ds(k, 1)]  # following
        return following, total + last

    zero = jnp.zeros((1, 128))
    _, total = lax.fori_loop(0, 8, step, (zero, zero))
    o_ref[pl.ds(0, 1)] = total


def dynamic_loop(x_ref: Any, n_ref: Any, o_ref: Any, a_ref: Any) -> None:
    count = n_ref[0]  # count
    start = a_ref[...]  # start
    o_ref[...] = lax.fori_loop(0, count, lambda _, total: total * 2, start)


def scopes(x_ref: Any, n_ref: Any, o_ref: Any, a_ref: Any) -> None:
    def scoped(scratch: Any) -> Any:
        scratch[...] = x_ref[...]  # not a register
        return scratch[...]  # scratch

    o_ref[...] = pl.run_scoped(scoped, pltpu.VMEM((8, 128), jnp.float32))


@pytest.mark.parametrize(
    "kernel, values, data, all_",
    [
        pytest.param(
            units,
            {"x": True, "rest": False},
            {"x": True, "rest": False, "chosen": True},
            {"x", "rest", "chosen"},
            id="units",
        ),
        pytest.param(
            branches,
            {},
            {"taken": True, "other": True},
            {"taken", "other", "index", "condition"},
            id="branches",
        ),
        pytest.param(loops, {"following": True}, {"following": True}, {"following"}, id="loops"),
        pytest.param(dynamic_loop, {}, {"start": True}, {"start", "count"}, id="dynamic loop"),
        pytest.param(scopes, {}, {"scratch": True}, {"scratch"}, id="scopes"),
    ],
)
def test_loads_behind_a_store(
    kernel: Callable[..., None], values: dict[str, bool], data: dict[str, bool], all_: set[str]
) -> None:
    assert loads(kernel, Follows.VALUES) == values
    assert loads(kernel, Follows.DATA) == data
    assert set(loads(kernel, Follows.ALL)) == all_


def test_what_a_loop_carries_and_the_references_that_it_reads() -> None:
    body = program(loops)
    (loop,) = (step for step in body.steps if isinstance(step, ir.ScanLoop))
    for result, carried in [(1, {1}), (2, {1, 2})]:  # 0 is the counter
        found = Slicer(Follows.DATA).inside(loop, {result: True})
        assert set(found.carried) == carried
        assert [reg for reg in body.inputs if reg.number in found.refs] == [body.inputs[0]]
