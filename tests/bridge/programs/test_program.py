"""Programs of the machine: which step sets a register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded, sanitized

from pallas_debug.bridge.programs import program as ir

X = np.ones((8, 128), np.float32)


class CountedSteps(tuple[ir.MachineStep, ...]):
    searches = 0

    def __iter__(self) -> Iterator[ir.MachineStep]:
        CountedSteps.searches += 1
        return super().__iter__()


def searches(stores: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a run goes through the steps of a kernel with so many stores."""

    def kernel(x_ref: Any, out_ref: Any, numbers: Any) -> None:
        for i in range(stores):
            numbers[i] = i
        out_ref[...] = x_ref[...] * numbers[0].astype(jnp.float32)

    def function(x: Any) -> Any:
        smem = pltpu.SMEM((stores,), jnp.int32)
        return pl.pallas_call(kernel, out_shape=x, scratch_shapes=[smem])(x)

    call = decoded(function, [X])
    monkeypatch.setattr(CountedSteps, "searches", 0)
    call = replace(call, body=replace(call.body, steps=CountedSteps(call.body.steps)))
    sanitized(call, [[X]])
    return CountedSteps.searches


def test_a_store_does_not_search_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an unrolled loop of 6,000 stores, nearly all of the time went into that."""
    assert searches(8, monkeypatch) == searches(32, monkeypatch)


def test_the_step_that_sets_a_register() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.exp(x_ref[...])

    body = decoded(lambda x: pl.pallas_call(kernel, out_shape=x)(x), [X]).body
    (store,) = (step for step in body.steps if isinstance(step, ir.StoreStep))
    computes = body.maker(store.value.number)
    assert isinstance(computes, ir.Compute)
    assert isinstance(body.maker(computes.inputs[0].number), ir.LoadStep)
    assert body.maker(body.inputs[0].number) is None
