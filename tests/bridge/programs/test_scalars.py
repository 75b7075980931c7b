"""Arithmetic on integer scalars, as numpy computes it for the machine: the same as XLA's."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded

from pallas_debug.bridge.primitives import TABLE
from pallas_debug.bridge.programs import numerics, scalars
from pallas_debug.bridge.programs import program as ir


def compute(function: Any) -> ir.Compute:
    """The step that computes what is stored of a number in SMEM."""

    def scalar_kernel(n_ref: Any, o_ref: Any) -> None:
        o_ref[0] = function(n_ref[0])

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        scalar_kernel,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        in_specs=[smem],
        out_specs=smem,
    )
    (program,) = decoded(call, (np.ones(1, np.int32),)).programs()
    (found,) = (step for step in program.steps if isinstance(step, ir.Compute))
    return found


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint16"])
def test_shifts_are_those_of_xla(dtype: str) -> None:
    info = np.iinfo(dtype)
    numbers = {info.min, info.max, 0, 1, 3, info.max // 3, info.min // 2}
    counts = {0, 1, 5, info.bits - 1, info.bits, info.bits + 1, info.max, info.min}
    pairs = np.array(list(itertools.product(numbers, counts))).astype(dtype)
    for shift in (lax.shift_left, lax.shift_right_arithmetic, lax.shift_right_logical):
        by_xla = np.asarray(shift(*pairs.T))
        function = TABLE[shift.__name__].scalar
        assert function is not None
        for pair, wanted in zip(pairs, by_xla, strict=True):
            got = function(*pair)
            assert (got, got.dtype) == (wanted, wanted.dtype), (shift.__name__, pair)


def test_a_division_by_zero_is_suspected() -> None:
    step = compute(lambda n: lax.div(12, n))
    assert isinstance(step.evaluate, scalars.ScalarUnit)
    watched = numerics.watch(step)
    assert watched.run([np.int32(5)]) == ([2], [])
    assert watched.run([np.int32(0)]) == ([-1], [("equation", 0)])


def test_indices_from_functions_of_jnp_are_left_to_numpy() -> None:
    step = compute(lambda n: jnp.where(n > 4, n // 4 % 3, jnp.clip(n, 0, 2)))
    assert isinstance(step.evaluate, scalars.ScalarUnit)
    assert step.evaluate(np.int32(21)) == [2]
    assert step.evaluate(np.int32(-7)) == [0]
