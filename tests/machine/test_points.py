"""Grid points run compiled, with the results and the faults of a run step by step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from correct_kernels import CORRECT, CorrectKernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import calls_of, passed, require_close

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine import points, run

F32 = jnp.float32
ROWS = np.arange(80 * 256, dtype=np.float32).reshape(80, 256) % 251
TABLE = np.array([4, 0, 2, 2, 1, 1, 3, 0], np.int32)

BLOCK = pl.BlockSpec((8, 256), lambda i: (i, 0))
by_rows = functools.partial(called, grid=(10,), block=BLOCK)


@by_rows()
def sum_of_padding(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.broadcast_to(x_ref[...].sum(0, keepdims=True), o_ref.shape)


@by_rows()
def partly_written(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) % 3 != 1)
    def _() -> None:
        o_ref[pl.ds(pl.program_id(0) % 8, 1), :] = x_ref[0:1, :]


@by_rows(scratch_shapes=[pltpu.VMEM((8, 256), jnp.bfloat16), pltpu.SMEM((1,), jnp.int32)])
def carried_in_scratch(x_ref: Any, o_ref: Any, state_ref: Any, count_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        state_ref[...] = jnp.zeros_like(state_ref)
        count_ref[0] = 0

    count_ref[0] += 1
    state_ref[...] = (state_ref[...].astype(F32) * 0.7 + x_ref[...]).astype(jnp.bfloat16)
    o_ref[...] = state_ref[...].astype(F32) + count_ref[0] + pl.num_programs(0)


@called(grid=(5, 3), block=pl.BlockSpec((16, 256), lambda i, j: (i, 0)))
def written_inputs(x_ref: Any, o_ref: Any) -> None:
    x_ref[...] = x_ref[...] * 2
    o_ref[...] = x_ref[...]


OVERLAPPING = pl.Element(10, (1, 3)), pl.Element(256)


@called(
    grid=(10,),
    in_specs=[pl.BlockSpec(OVERLAPPING, lambda i: (jnp.maximum(i, 1) * 8, 0))],
    out_specs=BLOCK,
)
def elements(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[0:8, :] + x_ref[2:10, :]


@called(
    prefetch=1,
    grid=(8,),
    in_specs=[pl.BlockSpec((8, 256), lambda i, table_ref: (table_ref[i], 0))],
    out_specs=pl.BlockSpec((8, 256), lambda i, table_ref: (table_ref[7 - i] * 2, 0)),
)
def by_table(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + table_ref[pl.program_id(0)].astype(F32)


@by_rows()
def index_past_the_end(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]
    o_ref[pl.ds(pl.program_id(0), 1), :] = x_ref[0:1, :]


@by_rows()
def false_hint(x_ref: Any, o_ref: Any) -> None:
    row = pl.multiple_of(pl.program_id(0) % 5, 4)
    o_ref[...] = x_ref[...] + row


PROGRAMS = [
    *((sum_of_padding, [ROWS[:77]]), (partly_written, [ROWS]), (carried_in_scratch, [ROWS])),
    *((written_inputs, [ROWS]), (elements, [ROWS]), (by_table, [TABLE, ROWS])),
]
FAULTS = [
    (index_past_the_end, [ROWS], 8),
    (by_table, [np.where(np.arange(8) == 3, 12, TABLE), ROWS], 3),
    (false_hint, [ROWS], 10),
]


@pytest.fixture(params=["nan", "number"])
def fill(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def both(
    launch: Launch, arrays: Any, monkeypatch: pytest.MonkeyPatch, fill: str = "nan"
) -> tuple[run.MachineRun, run.MachineRun, list[int]]:
    """A run whose grid runs compiled, one without, and positions up to which the former did."""
    stops: list[int] = []
    count = points._count
    with monkeypatch.context() as patch:
        patch.setattr(points, "_count", lambda *args: stops.append(args[-1]) or count(*args))
        patch.setattr(points, "FIRST_CHUNK", 2)
        patch.setattr(points, "MIN_POINTS", 2)
        one = run.run(launch, arrays, fill=fill)
        patch.setattr(points, "MIN_POINTS", 1 << 30)
        return one, run.run(launch, arrays, fill=fill), stops


def require_equal(one: run.MachineRun, other: run.MachineRun) -> None:
    facts = [
        [(f.kind, f.source, f.grid_point, f.index, f.message) for f in done.findings]
        for done in (one, other)
    ]
    assert facts[0] == facts[1]
    if one.stopped is None:
        require_close(one.results, other.results)


@pytest.mark.parametrize("kernel, args", PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))
def test_results_are_those_of_a_run_step_by_step(
    kernel: Callable[..., Any], args: Any, fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, arrays = passed(kernel, args)
    one, other, stops = both(launch, arrays, monkeypatch, fill)
    require_equal(one, other)
    assert stops[-1] == np.prod(launch.grid)


@pytest.mark.parametrize("kernel, args, stop", FAULTS, ids=["access", "block", "hint"])
def test_faults_are_those_of_a_run_step_by_step(
    kernel: Callable[..., Any], args: Any, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, arrays = passed(kernel, args)
    one, other, stops = both(launch, arrays, monkeypatch)
    require_equal(one, other)
    assert stops[-1] <= stop


@pytest.mark.parametrize("kernel", CORRECT, ids=lambda kernel: kernel.name)
def test_correct_kernels_compute_the_same(
    kernel: CorrectKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launch, arrays in calls_of(kernel.function, kernel.args):
        one, other, _ = both(launch, arrays, monkeypatch)
        require_equal(one, other)
