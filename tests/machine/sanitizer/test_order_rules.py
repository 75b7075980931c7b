"""What counts as ordered, and what does not: small kernels on the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded
from meshes import sharded

from pallas_debug.machine import run as machine_run
from pallas_debug.machine.machine import Machine
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.model import Finding

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
TILE = pltpu.VMEM((8, 128), F32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)


def sanitize(kernel: Callable[..., None], *args: np.ndarray, **call: Any) -> Sequence[Finding]:
    """Findings about the order of a kernel, whose result is shaped like its first argument."""
    call.setdefault("out_shape", jax.ShapeDtypeStruct(args[0].shape, args[0].dtype))
    if "parallel" in call:
        axes = ["parallel" if x else "arbitrary" for x in call.pop("parallel")]
        call["compiler_params"] = pltpu.CompilerParams(dimension_semantics=tuple(axes))
    launch = decoded(pl.pallas_call(kernel, **call), args)
    return machine_run.run(launch, [args], observers=[OrderSanitizer(launch)]).findings


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [str(finding.kind) for finding in findings]


@pytest.mark.parametrize("awaits", [True, False])
def test_the_pipeline_refills_a_window_that_a_copy_still_reads(awaits: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        i = pl.program_id(0)
        copy = pltpu.make_async_copy(x_ref, o_ref.at[pl.ds(i * 8, 8)], sem.at[i % 4])
        copy.start()
        if awaits:
            copy.wait()
        else:

            @pl.when(i == 3)
            def _all() -> None:
                for j in range(4):
                    pltpu.make_async_copy(x_ref, o_ref.at[pl.ds(j * 8, 8)], sem.at[j]).wait()

    findings = sanitize(
        kernel, X, grid=(4,), in_specs=[ROWS], out_specs=HBM, scratch_shapes=[DMA((4,))]
    )
    if awaits:
        assert not findings
        return
    (finding,) = findings
    assert kinds(findings) == ["DataRace"]
    assert finding.operand == "x_ref"
    assert finding.grid_point == (0,)
    assert "written by the copy of block (2, 0) to its window at grid point (2,)" in finding.message
    assert str(finding.cause).startswith("nothing waits before the grid point ends until the copy")
    assert str(finding.advice).startswith("wait for sem[0] before the grid point ends")


@pytest.mark.parametrize("awaits", [True, False])
def test_the_pipeline_writes_back_a_window_that_a_copy_still_fills(awaits: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        i = pl.program_id(0)

        def copy(j: Any) -> Any:
            return pltpu.make_async_copy(x_ref.at[pl.ds(j * 8, 8)], o_ref, sem)

        if awaits:
            copy(i).start()
            copy(i).wait()
            return

        @pl.when(i > 0)
        def _before() -> None:
            copy(i - 1).wait()

        copy(i).start()

        @pl.when(i == 3)
        def _last() -> None:
            copy(i).wait()

    findings = sanitize(kernel, X, grid=(4,), in_specs=[HBM], out_specs=ROWS, scratch_shapes=[DMA])
    assert kinds(findings) == ([] if awaits else ["DataRace"])
    if not awaits:
        (finding,) = findings
        assert "read by the copy of its window to block (0, 0)" in finding.message
        cause = "nothing waits before the grid point ends until the copy on sem is over"
        assert finding.cause == cause


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_pipeline_fetches_ahead_what_a_copy_writes(ahead: int) -> None:
    """Block i + 1 is fetched while grid point i runs."""

    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        i = pl.program_id(0)
        tile_ref[...] = x_ref[...] + 1
        rows = jnp.minimum(i + ahead, 3)
        copy = pltpu.make_async_copy(tile_ref, o_ref.at[pl.ds(rows * 8, 8)], sem)
        copy.start()
        copy.wait()

    findings = sanitize(
        kernel, X, grid=(4,), in_specs=[ROWS], out_specs=HBM, scratch_shapes=[TILE, DMA],
        input_output_aliases={0: 0},
    )  # fmt: skip
    assert kinds(findings) == ["DataRace"] * ahead
    if ahead:
        assert findings[0].operand == "o_ref"
        assert findings[0].grid_point == (0,)
        assert "read by the copy of block (1, 0) to its window" in findings[0].message


@pytest.mark.parametrize("parallel, shared, count", [(True, 8, 3), (True, 0, 0), (False, 8, 0)])
def test_parallel_grid_points_and_hbm(parallel: bool, shared: int, count: int) -> None:
    """Grid points that each copy 8 rows to HBM, and then perhaps those of the next one as well."""

    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        i = pl.program_id(0)

        def move(start: Any) -> None:
            rows = pl.ds(start, 8)
            copy = pltpu.make_async_copy(x_ref.at[rows], o_ref.at[rows], sem)
            copy.start()
            copy.wait()

        move(i * 8)
        if shared:
            pl.when(i < 3)(lambda: move(i * 8 + shared))

    findings = sanitize(
        kernel, X, grid=(4,), in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA],
        parallel=(parallel,),
    )  # fmt: skip
    assert kinds(findings) == ["DataRace"] * bool(count)
    if count:
        assert findings[0].count == count
        assert findings[0].cause is not None
        assert findings[0].cause.startswith("grid dimension 0 is parallel")
        assert findings[0].grid_point == (1,)


def test_an_output_that_each_lane_uses_as_scratch() -> None:
    def kernel(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = acc_ref[...]

    block = pl.BlockSpec((8, 128), lambda i, j: (2 * i + j, 0))
    shapes = (jax.ShapeDtypeStruct((32, 128), F32), jax.ShapeDtypeStruct((8, 128), F32))
    constant = pl.BlockSpec((8, 128), lambda i, j: (0, 0))
    call: dict[str, Any] = {
        "grid": (2, 2), "in_specs": [block], "out_specs": (block, constant), "out_shape": shapes,
    }  # fmt: skip
    assert not sanitize(kernel, X, parallel=(True, False), **call)
    assert kinds(sanitize(kernel, X, parallel=(True, True), **call)) == ["DataRace"]


@pytest.mark.parametrize("starts, waits", [((8, 8), (16,)), ((16,), (8, 8)), ((8, 16), (16, 8))])
def test_waits_may_be_cut_differently_from_copies(starts: Any, waits: Any) -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        at = 0
        for rows in starts:
            part = pl.ds(at, rows)
            pltpu.make_async_copy(x_ref.at[part], o_ref.at[part], sem).start()
            at += rows
        for rows in waits:
            part = pl.ds(0, rows)
            pltpu.make_async_copy(x_ref.at[part], o_ref.at[part], sem).wait()

    assert not sanitize(kernel, X, in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA])


def test_copies_of_nothing_order_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        whole = pltpu.make_async_copy(x_ref, tile_ref, sem)
        whole.start()
        for start in (0, 4):
            part = pl.ds(start, pl.program_id(0))
            nothing = pltpu.make_async_copy(x_ref.at[part], tile_ref.at[part], sem)
            nothing.start()
            if start:
                nothing.wait()
        o_ref[...] = tile_ref[...]
        whole.wait()

    tile = pltpu.VMEM((32, 128), F32)
    findings = sanitize(kernel, X, grid=(1,), in_specs=[HBM], scratch_shapes=[tile, DMA])
    assert kinds(findings) == ["DataRace"]
    assert findings[0].witness.other is not None
    assert findings[0].witness.other.text == "whole.start()"


@pytest.mark.parametrize("rows, races", [((0, 4), True), ((2, 1), True), ((12, 4), False)])
def test_the_source_of_a_copy_within_one_buffer(rows: tuple[int, int], races: bool) -> None:
    """A copy follows its own read of the source; what the core stores next does not."""

    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        tile_ref[...] = x_ref[...]
        copy = pltpu.make_async_copy(tile_ref.at[0:4], tile_ref.at[8:12], sem)
        copy.start()
        tile_ref[pl.ds(*rows)] = jnp.zeros((rows[1], 128), F32)
        copy.wait()
        o_ref[...] = tile_ref[...]

    findings = sanitize(kernel, X, scratch_shapes=[pltpu.VMEM((32, 128), F32), DMA])
    assert kinds(findings) == ["DataRace"] * races
    for finding in findings:
        assert finding.witness.other.text == "copy.start()"


@pytest.mark.parametrize("rows, to, overlap", [(8, 4, "4:8"), (4, 6, ""), (2, 0, ""), (8, 0, "")])
def test_a_copy_that_writes_its_own_source(rows: int, to: int, overlap: str) -> None:
    """Rows moved within one array: at once, in parts that do not overlap, and to their place."""

    def kernel(x_hbm: Any, o_hbm: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(o_hbm.at[pl.ds(0, rows)], o_hbm.at[pl.ds(to, rows)], sem)
        copy.start()
        copy.wait()

    findings = sanitize(
        kernel, X, in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA], input_output_aliases={0: 0}
    )
    assert len(findings) == bool(overlap)
    for finding in findings:
        assert (finding.kind, finding.operand) == ("DataRace", "o_hbm")
        assert finding.message == (
            f"the copy of o_hbm[0:{rows}, 0:128] to o_hbm[{to}:{to + rows}, 0:128] reads "
            f"o_hbm[{overlap}, 0:128], which it also writes"
        )
        assert finding.cause == (
            "a copy moves its data in pieces, and may read what it has already written"
        )
        assert finding.advice == (
            "copy by way of a buffer in VMEM, or in several copies, each awaited, that do not "
            "overlap"
        )
        assert finding.source.text == "copy.start()"


def test_a_wait_for_several_copies_may_name_more_rows_than_there_are() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        rows = pl.program_id(0) * 4 + 4  # of four copies; not a constant, as in a ragged batch
        for i in range(4):
            piece = pl.ds(i * 8, 8)
            pltpu.make_async_copy(x_ref.at[piece], o_ref.at[piece], sem).start()
        together = x_ref.at[pl.ds(0, rows * 8), pl.ds(0, 128)]
        pltpu.make_async_copy(together, o_ref.at[pl.ds(0, rows * 8)], sem).wait()

    def in_turn(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        for i in range(4):
            pltpu.make_async_copy(x_ref.at[i], tile_ref.at[i % 2, i // 2], sem).start()
        several = tile_ref.at[0, pl.ds(0, pl.program_id(0) + 4)]  # of two
        pltpu.make_async_copy(several, several, sem).wait()
        o_ref[...] = tile_ref[...].reshape(o_ref.shape)

    assert sanitize(kernel, X, grid=(1,), in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA]) == ()
    tiles = [pltpu.VMEM((2, 2, 8, 128), F32), DMA]
    rows = X.reshape(4, 8, 128)
    assert sanitize(in_turn, rows, grid=(1,), in_specs=[HBM], scratch_shapes=tiles) == ()


@pytest.mark.parametrize("rows", [8, 12])
def test_a_masked_store_writes_where_its_mask_is_true(rows: int) -> None:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        tile_ref[...] = x_ref[...]
        copy = pltpu.make_async_copy(tile_ref.at[pl.ds(8, 24)], o_ref.at[pl.ds(0, 24)], sem)
        copy.start()
        mask = jax.lax.broadcasted_iota(jnp.int32, (32, 128), 0) < rows
        pltpu.store(tile_ref, jnp.zeros((32, 128)), mask=mask)
        copy.wait()

    findings = sanitize(kernel, X, out_specs=HBM, scratch_shapes=[pltpu.VMEM((32, 128), F32), DMA])
    assert kinds(findings) == ["DataRace"] * (rows > 8)
    if findings:
        assert findings[0].witness.index == "tile_ref[0:12, 0:128]"
        assert "; both access tile_ref[8:12, 0:128]" in findings[0].message


def test_a_semaphore_that_is_read_once_its_copy_is_over() -> None:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        copy.wait()
        o_ref[...] = tile_ref[...] + pl.semaphore_read(sem)

    assert not sanitize(kernel, X, in_specs=[HBM], scratch_shapes=[pltpu.VMEM((32, 128), F32), DMA])


def test_a_loop_that_reads_a_semaphore_until_the_copy_is_over_ends() -> None:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, tile_ref, sem)
        copy.start()
        jax.lax.while_loop(lambda n: pl.semaphore_read(sem) == 0, lambda n: n + 1, 0)
        copy.wait()
        o_ref[...] = tile_ref[...]

    assert not sanitize(kernel, X, in_specs=[HBM], scratch_shapes=[pltpu.VMEM((32, 128), F32), DMA])


@pytest.mark.parametrize("backwards", [False, True])
def test_a_device_reads_a_semaphore_until_another_device_signals(backwards: bool) -> None:
    @called(scratch_shapes=[pltpu.SemaphoreType.REGULAR])
    def kernel(x_ref: Any, o_ref: Any, ready: Any) -> None:
        me = jax.lax.axis_index("x")
        first = 1 - int(backwards)  # the one that runs last

        @pl.when(me == first)
        def _signal() -> None:
            pl.semaphore_signal(ready, 1, device_id={"x": 1 - me})

        @pl.when(me != first)
        def _poll() -> None:
            jax.lax.while_loop(lambda n: pl.semaphore_read(ready) == 0, lambda n: n + 1, 0)
            pl.semaphore_wait(ready, 1)

        o_ref[...] = x_ref[...] * 2

    launch = decoded(sharded(kernel, x=2), [X])
    sanitizer = OrderSanitizer(launch)
    halves = [[X[:16]], [X[16:]]]
    results = Machine(launch, halves, observer=sanitizer, backwards=backwards).run()
    np.testing.assert_array_equal(np.concatenate([out for (out,) in results]), X * 2)
    assert not sanitizer.findings()
    assert not sanitizer.compared(halves, results)


def test_all_races_with_one_copy_lack_the_same_wait() -> None:
    """A load before the copy is over, another copy to the same place, and no wait at the end."""

    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        def copy(i: int) -> Any:
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], tile_ref, sem.at[i])

        copy(0).start()
        o_ref[pl.ds(0, 8), :] = tile_ref[...]
        copy(1).start()
        copy(1).wait()
        o_ref[pl.ds(8, 8), :] = tile_ref[...]

    (finding,) = sanitize(kernel, X, in_specs=[HBM], scratch_shapes=[TILE, DMA((2,))])
    assert (finding.kind, finding.operand) == ("DataRace", "tile_ref")
    assert finding.message.startswith("tile_ref[0:8, 0:128] is read")
    assert finding.count == 3


def test_a_race_and_a_missing_wait_are_one_where_a_scope_has_ended() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        def body(tile_ref: Any, sem: Any) -> None:
            pltpu.make_async_copy(x_ref, tile_ref, sem).start()
            o_ref[...] = tile_ref[...] * 2

        pl.run_scoped(body, pltpu.VMEM((32, 128), F32), DMA)

    assert kinds(sanitize(kernel, X, in_specs=[HBM])) == ["DataRace"]


def test_a_wait_is_for_the_copy_of_its_own_slices() -> None:
    """Copies of one size share a semaphore and a destination: the unawaited ones are the first."""

    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        def row(i: int) -> Any:
            part = pl.ds(i * 8, 8)
            return pltpu.make_async_copy(x_ref.at[part], o_ref.at[part], sem)

        row(0).start()  # FAULT
        for i in range(1, 4):
            row(i).start()
            row(i).wait()

    (finding,) = sanitize(kernel, X, in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA])
    assert finding.kind == "DmaNotAwaited"
    assert finding.source.text == "row(0).start()  # FAULT"
