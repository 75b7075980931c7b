"""Sums within `emit_pipeline`, and sums that the kernel copies out itself: which reads are stale."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

F32 = jnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
ROWS, COLUMNS = 2, 2


def numbers(rows: int = 16 * ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 128 * COLUMNS)).astype(np.float32)


def sums_in_a_pipeline(
    x: jax.Array, *, resets: str, scoped: bool = False, columns: int = COLUMNS
) -> jax.Array:
    """Sums of two tiles for each column, in a pipeline at each grid point."""

    def kernel(x_hbm: Any, out_hbm: Any, *scratch: Any) -> None:
        i = pl.program_id(0)

        def add(x_ref: Any, out_ref: Any, acc_ref: Any) -> None:
            j, k = pl.program_id(0), pl.program_id(1)
            is_first = {
                "each block": k == 0,
                "each pipeline": j + k == 0,
                "first pipeline": (k == 0) & (i == 0),
            }[resets]

            @pl.when(is_first)
            def _start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

            acc_ref[...] += x_ref[...]

            @pl.when(k == 1)
            def _finish() -> None:
                out_ref[...] = acc_ref[...]

        def pipeline(acc_ref: Any) -> None:
            pltpu.emit_pipeline(
                add,
                grid=(columns, 2),
                in_specs=[pl.BlockSpec((8, 128), lambda j, k: (2 * i + k, j))],
                out_specs=[pl.BlockSpec((8, 128), lambda j, k: (i, j))],
            )(x_hbm, out_hbm, scratches=(acc_ref,))

        pl.run_scoped(pipeline, TILE) if scoped else pipeline(*scratch)

    return pl.pallas_call(
        kernel,
        grid=(ROWS,),
        in_specs=[ANY],
        out_specs=ANY,
        out_shape=jax.ShapeDtypeStruct((8 * ROWS, 128 * COLUMNS), F32),
        scratch_shapes=[] if scoped else [TILE],
    )(x)


@pytest.mark.parametrize(
    "resets, scoped, place",
    [
        ("each block", False, None),
        ("each block", True, None),
        ("each pipeline", False, ((0,), (2,))),
        ("each pipeline", True, ((0,), (2,))),
        ("first pipeline", False, ((1,), (0,))),
    ],
)
def test_sum_in_a_pipeline(resets: str, scoped: bool, place: Any) -> None:
    findings = found(lambda x: sums_in_a_pipeline(x, resets=resets, scoped=scoped), numbers())
    if place is None:
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, (finding.grid_point, finding.loop)) == ("StaleRead", place)
    assert finding.source is not None
    assert finding.source.text == "acc_ref[...] += x_ref[...]"
    assert finding.cause is not None
    assert "under @pl.when(is_first)" in finding.cause
    assert finding.operand == ("acc_ref" if scoped else "scratch[0]")
    if resets == "each pipeline":
        assert "for out_hbm[0:8, 128:256], reads what" in finding.message
        assert f"left in {finding.operand} for out_hbm[0:8, 0:128]" in finding.message
        assert "only at grid point (0,), loop iteration (0,)" in finding.cause
        assert finding.advice is not None
        assert "whenever another part of out_hbm begins" in finding.advice
    else:
        assert (
            "for out_hbm[8:16, 0:128], reads what grid point (0,), loop iteration (3,)"
            in finding.message
        )


def test_a_sum_that_a_stopped_run_leaves_unstored() -> None:
    """A pipeline with a column too many stops when it fetches that."""
    function = partial(sums_in_a_pipeline, resets="each block", columns=COLUMNS + 1)
    assert [finding.kind for finding in found(function, numbers())] == ["OutOfBoundsRead"]


def sums_copied_out(x: jax.Array, *, resets: bool, runs_on: bool = False) -> jax.Array:
    """Sums of rows that the last step of each copies to HBM; or running sums, one for each step."""

    def kernel(x_ref: Any, out_hbm: Any, acc_ref: Any, sem: Any) -> None:
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when(k == 0 if resets else i + k == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when((k == 1) | runs_on)
        def _finish() -> None:
            rows = out_hbm.at[pl.ds(8 * ((2 * i + k) if runs_on else i), 8)]
            copy = pltpu.make_async_copy(acc_ref, rows, sem)
            copy.start()
            copy.wait()

    return pl.pallas_call(
        kernel,
        grid=(ROWS, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=ANY,
        out_shape=jax.ShapeDtypeStruct((8 * ROWS * (1 + runs_on), 128), F32),
        scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
    )(x)


def test_sum_that_the_kernel_copies_out() -> None:
    x = numbers(8 * ROWS)
    (finding,) = found(lambda x: sums_copied_out(x, resets=False), x)
    assert (finding.kind, finding.operand, finding.grid_point) == ("StaleRead", "acc_ref", (1, 0))
    assert (
        "for out_hbm[8:16, 0:128], reads what grid point (0, 1) left in acc_ref" in finding.message
    )
    assert not found(lambda x: sums_copied_out(x, resets=True), x)


def test_running_sum_that_the_kernel_copies_out() -> None:
    assert not found(lambda x: sums_copied_out(x, resets=False, runs_on=True), numbers(8 * ROWS))


def copies_in_a_pipeline(x: jax.Array, *, rows: int) -> jax.Array:
    """A pipeline that stores so many rows of each of its blocks of 8."""

    def kernel(x_hbm: Any, out_hbm: Any) -> None:
        def copy(x_ref: Any, out_ref: Any) -> None:
            out_ref[:rows] = x_ref[:rows]

        blocks = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(copy, grid=(2,), in_specs=[blocks], out_specs=[blocks])(x_hbm, out_hbm)

    return pl.pallas_call(kernel, in_specs=[ANY], out_specs=ANY, out_shape=jax.typeof(x))(x)


def test_a_block_that_a_pipeline_copies_out_unwritten() -> None:
    x = numbers(16)[:, :128]
    assert not found(lambda x: copies_in_a_pipeline(x, rows=8), x)
    (gap,) = found(lambda x: copies_in_a_pipeline(x, rows=4), x)
    assert (gap.kind, gap.operand, gap.loop) == ("OutputNotWritten", "out_hbm", (0,))
    assert gap.message == (
        "a block that the pipeline copies to out_hbm, float32[16, 128] in HBM, is not written: "
        "512 of its 1,024 elements hold whatever VMEM held before"
    )
    assert gap.advice == (
        "store to all of a block of out_hbm before the pipeline moves on to the next one"
    )
