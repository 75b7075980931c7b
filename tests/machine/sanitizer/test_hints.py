"""Hints from a run: what looks unintended, and fails nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from broken_kernels import ALL, BrokenKernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from machine_runs import passed

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Hint

STATIC = ("unread input", "no effect")


def hints(function: Callable[..., Any], *args: Any) -> Sequence[Hint]:
    """Hints that the sanitizer gives for a kernel in which it finds no fault."""
    call, arrays = passed(function, args)
    ran = run.run(call, arrays, observers=areas.observers(call, arrays))
    assert not ran.findings
    return ran.hints


INTENT = [kernel for kernel in ALL if kernel.hint is not None and kernel.hint not in STATIC]


@pytest.mark.parametrize("kernel", INTENT, ids=lambda kernel: kernel.name)
def test_a_broken_kernel_whose_fault_is_one_of_intent(kernel: BrokenKernel) -> None:
    found = hints(kernel.function, *kernel.make_args())
    assert kernel.hint in {hint.kind for hint in found}
    lines = [line.place for hint in found for line in (hint.source, hint.other) if line is not None]
    assert (kernel.file, kernel.line) in lines


def test_an_initial_value_that_is_stored_again_at_each_step() -> None:
    """The preload of an output in place, without a guard: pytorch/helion#2637."""

    def call(kernel: Any, table: Any, parts: Any) -> jax.Array:
        part = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        rows = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
        return pl.pallas_call(
            kernel, table, grid=(2, 3), in_specs=[rows, part], out_specs=rows,
            input_output_aliases={0: 0},
        )(table, parts)  # fmt: skip

    def preloaded(table_ref: Any, part_ref: Any, o_ref: Any) -> None:
        o_ref[...] = table_ref[...]  # preload
        o_ref[...] += part_ref[...]

    def guarded(table_ref: Any, part_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            o_ref[...] = table_ref[...]

        o_ref[...] += part_ref[...]

    x, y = np.ones((16, 128), "float32"), np.ones((16, 384), "float32")
    (hint,) = hints(lambda x, y: call(preloaded, x, y), x, y)
    assert (hint.kind, hint.operand, hint.grid_point) == ("unread write", "o_ref", (0, 0))
    assert hint.other is not None
    assert "# preload" in (hint.other.text or "")
    assert not hints(lambda x, y: call(guarded, x, y), x, y)


@pytest.mark.parametrize("equal", [True, False])
def test_cores_that_store_to_one_block(equal: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + (0 if equal else pl.program_id(0))

    def call(x: Any) -> jax.Array:
        rows = pl.BlockSpec((8, 128), lambda i: (0, 0))
        return pl.pallas_call(
            kernel, x, grid=(2,), in_specs=[rows], out_specs=rows,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)  # fmt: skip

    given, arrays = passed(call, (np.ones((8, 128), "float32"),))
    ran = run.run(given, arrays, observers=areas.observers(given, arrays))
    assert [finding.kind for finding in ran.findings] == ["DataRace"] * (not equal)
    assert [hint.kind for hint in ran.hints if "equal values" in hint.message] == (
        ["several writers"] * equal
    )


@pytest.mark.parametrize("equal", [True, False])
def test_programs_of_a_gpu_that_store_to_one_place(equal: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        value = plt.load(x_ref.at[pl.ds(0, 16)])
        plt.store(o_ref.at[pl.ds(0, 16)], value + (0 if equal else pl.program_id(0)))

    def call(x: Any) -> jax.Array:
        params = plt.CompilerParams(num_warps=1)
        return pl.pallas_call(kernel, x, grid=(2,), compiler_params=params)(x)

    given, arrays = passed(call, (np.ones(16, "float32"),))
    ran = run.run(given, arrays, observers=areas.observers(given, arrays))
    assert [finding.kind for finding in ran.findings] == ["DataRace"] * (not equal)
    assert [hint.kind for hint in ran.hints if "equal values" in hint.message] == (
        ["several writers"] * equal
    )


def test_an_output_block_that_is_written_again_after_another_one() -> None:
    """A table that is not sorted; a later visit stores the whole block, so nothing is undefined."""

    def call(rows: jax.Array, x: jax.Array) -> jax.Array:
        def kernel(rows_ref: Any, x_ref: Any, out_ref: Any) -> None:
            out_ref[...] = x_ref[...]

        block = pl.BlockSpec((8, 128), lambda t, rows: (t, 0))
        grid_spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(7,),
            in_specs=[block],
            out_specs=pl.BlockSpec((8, 128), lambda t, rows: (rows[t], 0)),
        )
        out = jax.ShapeDtypeStruct((32, 128), x.dtype)
        return pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=out)(rows, x)

    x = np.arange(56 * 128, dtype=np.float32).reshape(56, 128)
    found = hints(call, np.array([0, 1, 0, 2, 2, 2, 3], np.int32), x)
    (hint,) = (hint for hint in found if hint.kind == "several writers")
    assert hint.kind == "several writers"
    assert hint.message == (
        "grid points (0,) and (2,) write different values to one element of out_ref, and the last "
        "one wins"
    )
