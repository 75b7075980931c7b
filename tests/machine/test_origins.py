"""Entries of tables that the index of a copy comes from, also by way of scratch in SMEM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import passed

from pallas_debug.machine import run
from pallas_debug.model import Finding

ANY = pl.BlockSpec(memory_space=pl.ANY)
X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
ROWS = np.array([9, 1, 7, 2, 3, 4, 5, 6], np.int32)


def call(kernel: Callable[..., None], *, prefetch: int = 0) -> Callable[..., Any]:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=prefetch,
        grid=(3,),
        in_specs=[ANY] * (2 - prefetch),
        out_specs=pl.BlockSpec((8, 128), lambda i, *_: (i, 0)),
        scratch_shapes=[
            pltpu.SMEM((4,), jnp.int32),
            pltpu.VMEM((8, 128), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ],
    )
    return pl.pallas_call(
        kernel, grid_spec=spec, out_shape=jax.ShapeDtypeStruct((24, 128), jnp.float32)
    )


def stopped_by(function: Callable[..., Any], *args: Any) -> Finding:
    launched, arrays = passed(function, args)
    stopped = run.run(launched, arrays).stopped
    assert stopped is not None
    return stopped


def by_table(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
    row = t_ref[pl.program_id(0)] * 8
    pltpu.async_copy(x_hbm.at[pl.ds(row, 8)], buf, sem).wait()
    o_ref[...] = buf[...]


def by_scratch(t_hbm: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
    pltpu.async_copy(t_hbm.at[pl.ds(1, 4)], t_smem, sem).wait()
    row = t_smem[pl.program_id(0)] * 8
    pltpu.async_copy(x_hbm.at[pl.ds(row, 8)], buf, sem).wait()
    o_ref[...] = buf[...]


def of_dynamic_size(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
    size = t_ref[7]
    rows = pl.ds(t_ref[pl.program_id(0)] * 8, size)
    pltpu.async_copy(x_hbm.at[rows], buf.at[pl.ds(0, size)], sem).wait()
    o_ref[...] = buf[...]


KERNELS = [
    pytest.param(call(by_table, prefetch=1), "t_ref[{0}], which is {1}", 0, id="prefetch"),
    pytest.param(
        call(by_scratch),
        "t_smem[{0}], which is {1} and was copied from t_hbm[{2}]",
        1,
        id="scratch",
    ),
]


@pytest.mark.parametrize("function, entry, offset", KERNELS)
def test_a_copy_out_of_bounds_names_the_entry(function: Any, entry: str, offset: int) -> None:
    table = np.roll(np.where(ROWS == 9, 8, ROWS), 1 + offset)  # the 8 is seen at grid point (1,)
    stopped = stopped_by(function, table, X)
    assert (stopped.kind, stopped.grid_point) == ("OutOfBoundsRead", (1,))
    message = entry.format(1, 8, 1 + offset)
    assert stopped.cause == f"the index comes from {message}, and nothing keeps it within bounds"


def test_an_index_is_that_of_the_start_where_the_size_comes_from_a_table_too() -> None:
    stopped = stopped_by(call(of_dynamic_size, prefetch=1), np.roll(ROWS, 1), X)
    assert (
        stopped.cause
        == "the index comes from t_ref[1], which is 9, and nothing keeps it within bounds"
    )


def test_an_index_that_is_computed_beside_that_of_a_table() -> None:
    """Both are outputs of one step, of which each has inputs of its own."""

    def kernel(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
        i = pl.program_id(0)
        rows, lanes = pl.ds(t_ref[i] * 8, 8), pl.ds(i * 128, 128)
        pltpu.async_copy(x_hbm.at[rows, lanes], buf, sem).wait()
        o_ref[...] = buf[...]

    stopped = stopped_by(call(kernel, prefetch=1), ROWS % 8, X)
    assert "past the end of dimension 1" in stopped.message
    assert "`rows, lanes = pl.ds(t_ref[i] * 8, 8), pl.ds(i * 128, 128)`" in stopped.cause
    assert "t_ref[1], which" not in stopped.cause


def test_an_index_that_comes_from_several_entries_names_them() -> None:
    def kernel(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
        t_smem[0] = 16
        rows = pl.ds((t_ref[0] - t_ref[1]) * t_smem[0], 8)
        pltpu.async_copy(x_hbm.at[rows], buf, sem).wait()
        o_ref[...] = buf[...]

    stopped = stopped_by(call(kernel, prefetch=1), ROWS, X)
    first, second = ROWS[:2]
    assert stopped.cause == (
        f"the index comes from t_ref[0], which is {first}, and from t_ref[1], which is {second}, "
        "and from t_smem[0], which is 16, and nothing keeps it within bounds"
    )
    assert stopped.values["index from"] == "t_ref, t_smem"


def test_an_entry_that_decides_between_two_indices_is_not_their_origin() -> None:
    def kernel(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
        i = pl.program_id(0)
        row = jnp.where(t_ref[i] > 6, i + 60, i)
        pltpu.async_copy(x_hbm.at[pl.ds(row, 8)], buf, sem).wait()
        o_ref[...] = buf[...]

    stopped = stopped_by(call(kernel, prefetch=1), ROWS, X)
    assert "`row = jnp.where(t_ref[i] > 6, i + 60, i)`" in stopped.cause
    assert "index from" not in stopped.values


# Values that loops carry

SIZES = np.array([8, 16, 24, 16, 8, 1, 1, 1], np.int32)


def packed(how: str) -> Callable[..., None]:
    """A kernel that copies groups of rows, one after the other; the last begins past the end."""

    def kernel(t_ref: Any, x_hbm: Any, o_ref: Any, t_smem: Any, buf: Any, sem: Any) -> None:
        def copied(begin: Any) -> None:
            pltpu.async_copy(x_hbm.at[pl.ds(begin, 8)], buf, sem).wait()
            o_ref[...] = buf[...]

        def group(j: Any, begin: Any) -> Any:
            copied(begin)
            return {
                "sum": begin + t_ref[j],
                "dynamic": begin + t_ref[j],
                "two": begin + t_ref[j] + 24,
                "list": t_ref[begin // 8],
                "constant": begin + 16,
            }[how]

        if how == "after":
            copied(lax.fori_loop(0, 5, lambda j, begin: begin + t_ref[j], 0))
        elif how == "after a dynamic loop":
            steps = 5 + pl.program_id(0)
            copied(lax.fori_loop(0, steps, lambda j, begin: begin + t_ref[j], 0))
        else:
            steps = 5 + pl.program_id(0) if how == "dynamic" else 5
            lax.fori_loop(0, steps, group, 0)

    return kernel


@pytest.mark.parametrize(
    "how, entries",
    [
        *(("sum", "entries of t_ref"), ("dynamic", "entries of t_ref")),
        *(("two", "entries of t_ref"), ("list", "entries of t_ref")),
        *(("after", "entries of t_ref"), ("after a dynamic loop", ""), ("constant", "")),
    ],
)
def test_an_index_that_a_loop_carries_names_the_table(how: str, entries: str) -> None:
    table = np.array([8, 16, 72, 0, 0, 0, 0, 0], np.int32) if how == "list" else SIZES
    stopped = stopped_by(call(packed(how), prefetch=1), table, X)
    where = f"comes from {entries}, and nothing keeps it within bounds"
    if entries:
        assert stopped.cause == f"the index {where}"
    else:
        assert "t_ref[" not in stopped.cause.partition("line")[0]
