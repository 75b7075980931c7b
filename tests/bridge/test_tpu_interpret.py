"""Findings of TPU interpret mode in the user's terms: every sentence, every place, the context.

Detection of each broken kernel is tested in `test_tpu_broken.py`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import dispatch
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import race_detection_state, shared_memory
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpu_interpreted import (
    DMA,
    EAGER,
    F32,
    FIRST,
    HANG_AFTER,
    HBM,
    PARALLEL,
    PLAIN,
    RACES,
    REGULAR,
    ROWS,
    TILE,
    TWO_CORES,
    WHOLE,
    Seen,
    X,
    launch,
)

from pallas_debug.bridge import selftest
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.interpret import tpu_interpret
from pallas_debug.errors import KernelFault
from pallas_debug.model import Finding
from pallas_debug.render import finding_text


def here(marker: str) -> int:
    """The number of the line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return line


# Every sentence.


def rotate_rows(x_ref: Any, out_ref: Any) -> None:
    start = pl.program_id(0) * 8 + 4
    out_ref[...] = x_ref[pl.ds(start, 8), :]


ROTATE = launch(rotate_rows, grid=(2,), in_specs=[WHOLE], out_specs=ROWS)


def test_a_read_past_the_end() -> None:
    seen = Seen(lambda: ROTATE(X))
    assert seen.text == [
        "OutOfBoundsRead in kernel `rotate_rows`, grid point (1,)",
        "  test_tpu_interpret.py   out_ref[...] = x_ref[pl.ds(start, 8), :]",
        "  x_ref[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM",
        "  cause: the index is not bounded by the shape of the ref",
        "  try: keep the index between 0 and 16 - 8, or pad the array",
    ]
    found = seen.only
    assert (found.operand, found.index) == ("x_ref", "x_ref[12:20, 0:128]")
    assert found.witness.shape == "float32[16, 128] in VMEM"
    assert (found.grid_point, found.loop, found.count) == ((1,), (), 1)
    assert found.values == {"device": "0", "core": "0"}


def test_nested_loops_and_what_run_scoped_allocates() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        def body(tile: Any, _: Any) -> None:
            def outer(i: Any, _: None) -> None:
                def inner(j: Any, _: None) -> None:
                    tile[pl.ds(j * 4, 4), :] = x_ref[0:4, :]

                lax.fori_loop(0, i + 2, inner, None)

            lax.fori_loop(0, 3, outer, None)
            out_ref[...] = x_ref[...]

        pl.run_scoped(body, TILE, REGULAR)

    assert Seen(lambda: launch(kernel)(X)).text == [
        "OutOfBoundsWrite in kernel `kernel`, loop iteration (1, 2)",
        "  test_tpu_interpret.py   tile[pl.ds(j * 4, 4), :] = x_ref[0:4, :]",
        "  tile[8:12, 0:128] reaches 4 past the end of dimension 0 of float32[8, 128] in VMEM",
        "  cause: the index is not bounded by the shape of the ref",
        "  try: keep the index between 0 and 8 - 4, or make tile larger",
    ]


@pytest.mark.slow
def test_a_block_from_a_table() -> None:
    def gather(table_ref: Any, page_ref: Any, out_ref: Any) -> None:
        out_ref[...] = page_ref[...]

    page = pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))
    out = pl.BlockSpec((8, 128), lambda i, table: (i, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[page], out_specs=out
    )
    table = jnp.array([1, 9], jnp.int32)
    seen = Seen(lambda: launch(gather, grid_spec=spec, name="pages")(table, X))
    assert seen.text == [
        "BlockOutOfBounds in kernel `pages`, grid point (1,)",
        "  test_tpu_interpret.py   page = pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))",
        "  the index map of page_ref returns block 9 along dimension 0 of float32[16, 128], which "
        "has 2 blocks",
        "  cause: the index map takes the block from a scalar-prefetch operand without checking it",
        "  try: check the table before the call, or clamp the index in the index map",
    ]
    assert (seen.only.values["dimension"], seen.only.values["block"]) == ("0", "9")
    assert seen.only.index == "page_ref[72:80, 0:128]"
    short = Seen(lambda: launch(gather, grid_spec=spec)(table[:1] * 0, X))
    assert short.text[0] == "OutOfBoundsRead in kernel `gather`, grid point (1,)"
    assert short.text[2] == (
        "  table_ref[1] reaches 1 past the end of dimension 0 of int32[1] in SMEM"
    )


@pytest.mark.slow
def test_a_race_of_a_copy() -> None:
    def double(x_ref: Any, out_ref: Any, tile_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(pl.program_id(0) * 8, 8)], tile_ref, sem)
        copy.start()
        out_ref[...] = tile_ref[0:4, :]
        copy.wait()

    half = pl.BlockSpec((4, 128), lambda i: (i, 0))
    call = launch(
        double,
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        grid=(2,),
        in_specs=[HBM],
        out_specs=half,
        scratch_shapes=[TILE, DMA],
    )
    for params in (RACES, dataclasses.replace(RACES, dma_execution_mode="eager")):
        seen = Seen(lambda: call(X), params)
        assert seen.text == [
            "DataRace in kernel `double`, grid point (0,)",
            "  test_tpu_interpret.py   out_ref[...] = tile_ref[0:4, :]",
            "  tile_ref[0:4, 0:128], float32[8, 128] in VMEM, is read at grid point (0,) here and "
            "written by the copy of x_ref to tile_ref (semaphore sem) at grid point (0,) on the "
            "other side; nothing orders the two",
            "  other side: test_tpu_interpret.py   copy.start()",
            "  cause: copied data is available only after the wait",
            "  try: wait for the copy before this line",
        ]
        facts = seen.only.values
        assert (facts["other semaphore"], facts["other grid point"]) == ("sem", "(0,)")
        assert facts["other copy"] == "x_ref to tile_ref"


@pytest.mark.slow
def test_a_race_of_two_cores() -> None:
    def copy(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    call = launch(copy, grid=(2,), in_specs=[ROWS], out_specs=FIRST, compiler_params=PARALLEL)
    seen = Seen(lambda: call(X), TWO_CORES)
    points = {str(seen.only.grid_point), seen.only.values["other grid point"]}
    assert points == {"(0,)", "(1,)"}
    assert {seen.only.values["core"], seen.only.values["other core"]} == {"0", "1"}
    assert seen.text[1] == (
        "  tpu_interpreted.py   FIRST = pl.BlockSpec((8, 128), lambda i: (0, 0))"
    )
    assert seen.text[2].startswith("  out_ref[0:8, 0:128], float32[16, 128] in HBM, is written at")
    assert seen.text[4:] == [
        "  cause: the grid points of a parallel axis may run on several cores at once (v4 and v5p "
        "have two)",
        '  try: give each grid point its own block, or make the axis "arbitrary" in '
        "dimension_semantics",
    ]
    state = interpreter.races
    assert state is not None
    assert state.races_found


@pytest.mark.slow
def test_a_copy_and_a_semaphore_left_over(capfd: pytest.CaptureFixture[str]) -> None:
    def kernel(x_ref: Any, out_ref: Any, tile_ref: Any, sem: Any, counts: Any) -> None:
        out_ref[...] = x_ref[...] * 1.0
        pl.semaphore_signal(counts.at[1], 3)
        pltpu.make_async_copy(x_ref.at[0:8], tile_ref, sem).start()

    call = launch(kernel, scratch_shapes=[TILE, DMA, pltpu.SemaphoreType.REGULAR((2,))])
    for params in (PLAIN, EAGER):
        seen = Seen(lambda: call(X), params)
        assert seen.error is None
        assert capfd.readouterr().out == ""
        texts = [finding_text(f).splitlines() for f in seen.findings]
        assert sorted(f.kind for f in seen.findings) == ["DmaNotAwaited", "SemaphoreLeftOver"]
        assert [text[2:] for text in sorted(texts)] == [
            [
                "  the copy of x_ref to tile_ref is never waited for on sem: 4,096 bytes are left "
                "on it when the kernel ends",
                "  cause: the kernel may end before the copy does, leaving the semaphore raised "
                "for the next kernel",
                "  try: wait once for each copy started; do not start a copy when nothing is left "
                "to fetch",
            ],
            [
                "  counts[1] is 3 at the end of the kernel, but must be 0",
                "  cause: nothing waits for it",
                "  try: wait for counts[1] as often as it is signalled: the next kernel inherits "
                "its count",
            ],
        ]


def test_a_deadlock() -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 2)

    before = time.monotonic()
    seen = Seen(lambda: launch(kernel, scratch_shapes=[REGULAR])(X), hang_after=60.0)
    assert time.monotonic() - before < 30, "all cores wait: there is nothing to wait for"
    assert seen.text == [
        "Deadlock in kernel `kernel`",
        "  test_tpu_interpret.py   pl.semaphore_wait(sem, 2)",
        "  sem is at 1, but the wait needs 2",
        "  other side: test_tpu_interpret.py   pl.semaphore_signal(sem, 1)",
        "  cause: it is signalled less often than it is waited for",
        "  try: signal it once for every wait, on the device and core that waits",
    ]
    assert seen.only.values == {"device": "0", "core": "0", "count": "1", "awaited": "2"}


def test_direct_access_to_hbm() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    seen = Seen(lambda: launch(kernel, in_specs=[HBM])(X))
    assert isinstance(seen.error, KernelFault)
    assert seen.error.finding == seen.only
    assert seen.text[2:] == [
        "  x_ref, float32[16, 128] in HBM, is loaded or stored without a copy",
        "  cause: the core can load from and store to only VMEM and SMEM",
        "  try: copy it with pltpu.sync_copy into a VMEM scratch buffer, or give it a BlockSpec",
    ]


# Where kernels run.


@pytest.mark.slow
def test_one_core_waits_for_one_that_is_done() -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        out_ref[...] = x_ref[...]

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            pl.semaphore_wait(sem, 1)

    call = launch(
        kernel,
        grid=(2,),
        in_specs=[ROWS],
        out_specs=ROWS,
        scratch_shapes=[REGULAR],
        compiler_params=PARALLEL,
    )
    seen = Seen(lambda: call(X), TWO_CORES)
    assert seen.only.kind == "Deadlock"
    assert seen.only.grid_point == (0,)
    assert finding_text(seen.only) in str(seen.error)


def patched() -> list[object]:
    owners: list[tuple[Any, tuple[str, ...]]] = [
        (interpreter, ("callback", "interpret_pallas_call", "_interpret_jaxpr")),
        (interpreter.DMA, ("__init__", "execute_read", "execute_write")),
        (race_detection_state.RaceDetectionState, ("check_read", "check_write")),
        (shared_memory.Semaphore, ("wait",)),
        (shared_memory.SharedMemory, ("check_failed",)),
        (dispatch.RuntimeTokenSet, ("get_token_input",)),
    ]
    return [(name, vars(owner).get(name)) for owner, names in owners for name in names]


def test_nothing_stays_patched_and_contexts_nest() -> None:
    before = patched()
    outer: list[Finding] = []
    inner: list[Finding] = []
    with tpu_interpret.reporting(outer.append):
        during = patched()
        with tpu_interpret.reporting(inner.append):
            assert patched() == during
            with pytest.raises(Exception, match="OutOfBoundsRead"):
                call_rotate()
        assert patched() == during
        assert all(a != b for a, b in zip(before, during, strict=True))
    assert patched() == before
    assert outer == inner
    assert len(outer) == 1
    with pytest.raises(RuntimeError, match="of ours"), tpu_interpret.reporting(outer.append):
        raise RuntimeError("of ours")
    assert patched() == before


def call_rotate() -> Any:
    with pltpu.force_tpu_interpret_mode(PLAIN):
        return jax.block_until_ready(ROTATE(X))


@pytest.mark.slow
def test_the_next_kernel_runs_whatever_the_last_one_did() -> None:
    def sound(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + 1

    def waits(x_ref: Any, out_ref: Any, sem: Any) -> None:
        pl.semaphore_wait(sem, 1)

    found: list[Finding] = []
    with (
        tpu_interpret.reporting(found.append, hang_after=HANG_AFTER),
        pltpu.force_tpu_interpret_mode(PLAIN),
    ):
        for wrong in (ROTATE, launch(waits, scratch_shapes=[REGULAR]), ROTATE):
            with pytest.raises(Exception, match="KernelFault"):
                jax.block_until_ready(wrong(X))
            np.testing.assert_array_equal(launch(sound)(X), X + 1)
    assert [f.kind for f in found] == ["OutOfBoundsRead", "Deadlock"]
    with pltpu.force_tpu_interpret_mode(PLAIN):
        np.testing.assert_array_equal(launch(sound)(X), X + 1)


@pytest.mark.slow
def test_what_was_jitted_before_is_seen_and_is_as_before_afterwards() -> None:
    function = jax.jit(ROTATE)

    def plainly() -> str:
        with (
            pltpu.force_tpu_interpret_mode(PLAIN),
            pytest.raises(Exception, match="Out-of-bounds read of") as error,
        ):
            jax.block_until_ready(function(X))
        pltpu.reset_tpu_interpret_mode_state()
        return str(error.value)

    assert "KernelFault" not in plainly()
    for _ in range(2):  # the second time, the program is in jax's cache
        assert Seen(lambda: function(X)).only.kind == "OutOfBoundsRead"
    assert "KernelFault" not in plainly()


def test_what_is_not_waited_for_is_reported_before_the_context_is_left() -> None:
    def leaves(x_ref: Any, out_ref: Any, sem: Any) -> None:
        out_ref[...] = x_ref[...] + 1
        pl.semaphore_signal(sem, 1)

    found: list[Finding] = []
    call = jax.jit(launch(leaves, scratch_shapes=[REGULAR]))
    with tpu_interpret.reporting(found.append), pltpu.force_tpu_interpret_mode(PLAIN):
        result = call(X)
    assert [f.kind for f in found] == ["SemaphoreLeftOver"]
    np.testing.assert_array_equal(result, X + 1)


@pytest.mark.slow
def test_a_line_is_told_once_and_from_any_thread() -> None:
    found: list[Finding] = []

    def rotate() -> None:
        with pytest.raises(Exception, match="OutOfBoundsRead"):
            call_rotate()

    with tpu_interpret.reporting(found.append):
        rotate()
        thread = threading.Thread(target=rotate)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_a_dynamic_grid_and_operands_without_names() -> None:
    def copy(*refs: Any) -> None:
        refs[1][...] = refs[0][...]

    def call(size: Any) -> Any:
        return launch(copy, grid=(size,), in_specs=[ROWS], out_specs=ROWS)(X)

    seen = Seen(lambda: jax.jit(call)(3))
    assert (seen.only.kind, seen.only.operand) == ("BlockOutOfBounds", "refs[0]")
    assert seen.only.grid_point == (2,)
    assert seen.only.cause == (
        "the index equals the grid point along grid dimension 0, which has more steps than the "
        "array has blocks along this dimension"
    )
    assert Seen(lambda: jax.jit(call)(2)).findings == []


def test_what_the_interpreter_cannot_do_is_told_with_its_line() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        def body(tile: Any) -> None:
            out_ref[0:8] = tile[...]

        pl.run_scoped(body, TILE, collective_axes="core")  # collective

    seen = Seen(lambda: launch(kernel)(X))
    assert isinstance(seen.error, NotImplementedError)
    assert seen.only.kind == "InterpretError"
    assert seen.only.message == (
        "NotImplementedError: run_scoped_p with collective axes is not supported"
    )
    assert seen.only.source is not None
    assert seen.only.source.line == here("collective")


def test_a_kernel_that_we_cannot_describe_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sound(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + 1

    monkeypatch.setattr(capture, "_operands", lambda *_: [][0])
    with pytest.warns(UserWarning, match=r"cannot follow kernel sound .*list index out of range"):
        seen = Seen(lambda: launch(sound, name="sound")(X))
    np.testing.assert_array_equal(seen.result, X + 1)
    assert seen.findings == []


def fits() -> str | None:
    return selftest.results.__wrapped__()["TPU interpret mode"]


def test_the_installed_jax_fits() -> None:
    assert fits() is None


@pytest.mark.parametrize(
    "owner, name, sentence",
    [
        (interpreter, "dma_wait", "interpret_pallas_call.dma_wait is not where it was"),
        (shared_memory.Semaphore, "wait", "Semaphore.wait is not where it was"),
    ],
)
def test_a_jax_without_what_is_patched(
    owner: Any, name: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(owner, name)
    assert fits() == sentence


def test_a_jax_with_other_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "dma_wait", lambda token, device_id, size: token)
    assert fits() == ("interpret_pallas_call.dma_wait has no parameter local_core_id, sem_id")
