"""Grid points run compiled, with the results and the faults of a run step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from correct_kernels import CORRECT, CorrectKernel
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import calls_of, passed, require_close

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.machine import points, run

F32 = jnp.float32
ROWS = np.arange(80 * 256, dtype=np.float32).reshape(80, 256) % 251
TABLE = np.array([4, 0, 2, 2, 1, 1, 3, 0], np.int32)

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def block(i: Any, *_: Any) -> Any:
    return i, 0


def of_rows(kernel: Callable[..., None], *scratch: Any, rows: int = 80) -> Program:
    spec = pl.BlockSpec((8, 256), block)

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel, out_shape=x, grid=(-(-rows // 8),), in_specs=[spec], out_specs=spec,
            scratch_shapes=scratch,
        )(x)  # fmt: skip

    return function, (ROWS[:rows],)


def sum_of_padding() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.broadcast_to(x_ref[...].sum(0, keepdims=True), o_ref.shape)

    return of_rows(kernel, rows=77)


def partly_written() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) % 3 != 1)
        def _() -> None:
            o_ref[pl.ds(pl.program_id(0) % 8, 1), :] = x_ref[0:1, :]

    return of_rows(kernel)


def carried_in_scratch() -> Program:
    def kernel(x_ref: Any, o_ref: Any, state_ref: Any, count_ref: Any) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)
            count_ref[0] = 0

        count_ref[0] += 1
        state_ref[...] = (state_ref[...].astype(F32) * 0.7 + x_ref[...]).astype(jnp.bfloat16)
        o_ref[...] = state_ref[...].astype(F32) + count_ref[0] + pl.num_programs(0)

    return of_rows(kernel, pltpu.VMEM((8, 256), jnp.bfloat16), pltpu.SMEM((1,), jnp.int32))


def written_inputs() -> Program:
    @called(grid=(5, 3), block=pl.BlockSpec((16, 256), block))
    def kernel(x_ref: Any, o_ref: Any) -> None:
        x_ref[...] = x_ref[...] * 2
        o_ref[...] = x_ref[...]

    return kernel, (ROWS,)


def by_table(table: np.ndarray, kernel: Callable[..., None] | None = None) -> Program:
    def copy(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + table_ref[pl.program_id(0)].astype(F32)

    def function(table: jax.Array, x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel or copy,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(len(table),),
                in_specs=[pl.BlockSpec((8, 256), lambda i, table_ref: (table_ref[i], 0))],
                out_specs=pl.BlockSpec((8, 256), lambda i, table_ref: (table_ref[7 - i] * 2, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((80, 256), F32),
        )(table, x)

    return function, (table, ROWS)


def elements() -> Program:
    @called(
        grid=(10,),
        in_specs=[
            pl.BlockSpec(
                (pl.Element(10, (1, 3)), pl.Element(256)), lambda i: (jnp.maximum(i, 1) * 8, 0)
            )
        ],
        out_specs=pl.BlockSpec((8, 256), block),
    )
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[0:8, :] + x_ref[2:10, :]

    return kernel, (ROWS,)


PROGRAMS = [
    *(sum_of_padding, partly_written, carried_in_scratch, written_inputs, elements),
    lambda: by_table(TABLE),
]


def index_past_the_end() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        o_ref[...] = x_ref[...]
        o_ref[pl.ds(i, 1), :] = x_ref[0:1, :]

    return of_rows(kernel)


def false_hint() -> Program:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        row = pl.multiple_of(pl.program_id(0) % 5, 4)
        o_ref[...] = x_ref[...] + row

    return of_rows(kernel)


FAULTS = [
    (index_past_the_end, 8),
    (lambda: by_table(np.array([4, 0, 2, 12, 1, 1, 3, 0], np.int32)), 3),
    (false_hint, 10),
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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_are_those_of_a_run_step_by_step(
    program: Callable[[], Program], fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, arrays = passed(*program())
    one, other, stops = both(launch, arrays, monkeypatch, fill)
    require_equal(one, other)
    assert stops[-1] == np.prod(launch.grid)


@pytest.mark.parametrize("program, stop", FAULTS, ids=["access", "block", "hint"])
def test_faults_are_those_of_a_run_step_by_step(
    program: Callable[[], Program], stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, arrays = passed(*program())
    one, other, stops = both(launch, arrays, monkeypatch)
    require_equal(one, other)
    assert stops[-1] <= stop


def test_the_limit_on_time_ends_a_compiled_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MIN_POINTS", 2)
    monkeypatch.setattr(points, "FIRST_CHUNK", 4)
    done = run.run(*passed(*carried_in_scratch()), stop_after=0.0)
    assert (done.stopped.kind, done.stopped.grid_point) == (Fault.INTERPRET_ERROR, (3,))


@pytest.mark.parametrize("kernel", CORRECT, ids=lambda kernel: kernel.name)
def test_correct_kernels_compute_the_same(
    kernel: CorrectKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for launch, arrays in calls_of(kernel.function, kernel.args):
        one, other, _ = both(launch, arrays, monkeypatch)
        require_equal(one, other)
