"""Pipelines with more than two buffers: `emit_pipeline`, `pl.Buffered(n)` and rings by hand."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug

F32 = jnp.float32
STEPS = 6
X = np.arange(STEPS * 8 * 128, dtype=np.float32).reshape(-1, 128)
ANY = pl.BlockSpec(memory_space=pl.ANY)
PAIRS = "prefetched_count" in inspect.signature(pl.Buffered).parameters
"""Whether this jax has more than two buffers for outputs."""


def block(buffers: Any, *, revisits: bool = False, **more: Any) -> pl.BlockSpec:
    index_map = (lambda i, _: (i, 0)) if revisits else (lambda i: (i, 0))
    return pl.BlockSpec((8, 128), index_map, pipeline_mode=pl.Buffered(buffers, **more))


def affine(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2 + 1


def emitted(x: Any, given: Any, made: Any, grid: tuple[int, ...] = (STEPS,)) -> Any:
    @called(block=ANY)
    def kernel(x_hbm: Any, out_hbm: Any) -> None:
        pltpu.emit_pipeline(affine, grid=grid, in_specs=[given], out_specs=[made])(x_hbm, out_hbm)

    return kernel(x)


def deep(inputs: int, outputs: int, **more: Any) -> Any:
    marks = [pytest.mark.skipif(outputs > 2 and not PAIRS, reason="jax has two output buffers")]
    name = f"{inputs}-{outputs}" + "".join(f"-{key}" for key in more)
    return pytest.param(inputs, outputs, more, id=name, marks=marks)


@pytest.mark.parametrize(
    "inputs, outputs, more",
    [deep(3, 2), deep(4, 3), deep(3, 2, use_lookahead=True), deep(5, 4, use_lookahead=True)],
)
@pytest.mark.parametrize("revisits", [False, True], ids=["new", "revisited"])
def test_emitted_pipelines(inputs: int, outputs: int, more: dict[str, Any], revisits: bool) -> None:
    given, made = block(inputs, revisits=revisits, **more), block(outputs, revisits=revisits)
    grid = (STEPS, 3) if revisits else (STEPS,)
    report, out = pallas_debug.check(emitted, sanitize=True)(X, given, made, grid)
    assert report.ok, report
    np.testing.assert_array_equal(out, X * 2 + 1)


@pytest.mark.parametrize("mode", [pl.Buffered(3), pl.Buffered(3, use_lookahead=True)])
def test_the_pipeline_around_a_kernel_is_run_with_two_buffers(mode: Any) -> None:
    """jax lowers no deeper one for a TPU; `verify` says so."""
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    deeper = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=mode)
    call = called(grid=(STEPS,), in_specs=[deeper], out_specs=rows)(affine)
    report, out = pallas_debug.check(call, sanitize=True)(X)
    assert report.ok, report
    np.testing.assert_array_equal(out, X * 2 + 1)


@pytest.mark.skipif(not PAIRS, reason="jax has no pairs of buffer counts")
def test_a_pair_of_buffer_counts() -> None:
    call = called(grid=(STEPS,), block=block((3, 2)))(affine)
    verdict = pallas_debug.verify(call, X, targets="v5e")
    found = {o.engine: o.status for o in verdict.outcomes}
    assert (found["static"], found["compile"], found["machine"]) == ("ok", "found", "ok")
    (finding,) = verdict.findings
    assert "Separate input/output buffer counts" in finding.message
    assert "the pipeline around a kernel has one or two buffers" in finding.cause


def test_a_ring_filled_as_far_ahead_as_it_has_slots() -> None:
    slots = 3

    @called(
        jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[ANY],
        scratch_shapes=[pltpu.VMEM((slots, 8, 128), F32), pltpu.SemaphoreType.DMA((slots,))],
    )
    def kernel(x_hbm: Any, out_ref: Any, tiles: Any, sems: Any) -> None:
        def copy(i: Any) -> Any:
            slot = jax.lax.rem(i, slots)
            rows = pl.ds(i * 8, 8)
            return pltpu.make_async_copy(x_hbm.at[rows], tiles.at[slot], sems.at[slot])

        for i in range(slots):
            copy(i).start()
        out_ref[...] = jnp.zeros_like(out_ref)

        @pl.loop(0, STEPS)
        def _(i: Any) -> None:
            copy(i).wait()
            pl.when(i + slots < STEPS)(lambda: copy(i + slots).start())
            out_ref[...] += tiles[jax.lax.rem(i, slots)]

    report, _ = pallas_debug.check(kernel, sanitize=True)(X)
    finding, *_ = report.findings
    assert str(finding.kind) == "DataRace"
    assert finding.operand == "tiles"
    assert finding.witness.index == "tiles[0, 0:8, 0:128]"
    assert finding.loop == (0,)


def test_a_pipeline_that_is_the_kernel_itself_has_the_line_of_its_call() -> None:
    def call(x: Any) -> Any:
        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        kernel = pltpu.emit_pipeline(affine, grid=(STEPS,), in_specs=[rows], out_specs=rows)
        return pl.pallas_call(kernel, out_shape=x, in_specs=[ANY], out_specs=ANY)(x)

    (finding,) = pallas_debug.compare(call, lambda x: x * 3, X).findings
    assert (finding.source.file, finding.source.function) == (__file__, "call")
    writers = {link.source.line for link in finding.chain if link.source is not None}
    assert {finding.source.line, inspect.getsourcelines(affine)[1] + 1} <= writers
