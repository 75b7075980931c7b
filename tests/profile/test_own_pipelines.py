"""Advice on pipelines that a kernel runs itself, whose copies have no line of their own."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug

ROWS = jax.ShapeDtypeStruct((2048, 512), jnp.float32)


def pipelined(x: jax.Array, rows: int = 8) -> jax.Array:
    def kernel(x_hbm: jax.Ref, out_hbm: jax.Ref) -> None:
        def one(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
            out_ref[...] = x_ref[...] * 2.0 + 1.0

        block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
        grid = (x.shape[0] // rows,)
        run = pltpu.emit_pipeline(one, grid=grid, in_specs=[block], out_specs=[block])
        run(x_hbm, out_hbm)  # the pipeline

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(kernel, out_shape=x, in_specs=[anywhere], out_specs=anywhere)(x)


@pytest.mark.slow
def test_small_blocks_of_emit_pipeline_are_advised_at_its_call() -> None:
    (advice,) = pallas_debug.stats(pipelined, ROWS, target="v5e", estimate=False).advice
    assert advice.kind == "copy-latency"
    assert advice.source is not None
    line = Path(advice.source.file).read_text().splitlines()[advice.source.line - 1]
    assert line.endswith("# the pipeline")
    assert "each of the 256 iterations of a pipeline moves 32.0 KiB" in advice.message


@pytest.mark.slow
def test_a_pipeline_with_larger_blocks_takes_as_long_as_promised() -> None:
    """What an iteration takes whatever its block is does not grow with it."""
    small, large = (
        pallas_debug.stats(pipelined, ROWS, rows=rows, target="v6e", estimate=False)
        for rows in (8, 128)
    )
    (advice,) = small.advice
    assert advice.remedy.startswith("use blocks 16 times as large")
    stated = {e.name: e.figure.value for e in advice.evidence}
    assert stated["estimated cycles with larger blocks"] == pytest.approx(
        large.cycles.total.value, rel=0.15
    )
    assert large.advice == ()


def summed(x: jax.Array) -> jax.Array:
    """Sum of blocks that are copied into two slots in turn, each of which is waited for at once."""
    rows = 128

    def kernel(x_hbm: jax.Ref, out_ref: jax.Ref, slots: jax.Ref, done: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        @pl.loop(0, x.shape[0] // rows)
        def _add(i: jax.Array) -> None:
            slot = lax.rem(i, 2)
            block = x_hbm.at[pl.ds(i * rows, rows)]
            copy = pltpu.make_async_copy(block, slots.at[slot], done.at[slot])
            copy.start()  # the copy
            copy.wait()
            out_ref[...] += jnp.tanh(slots[slot])

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, x.shape[1]), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((2, rows, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)


@pytest.mark.slow
def test_copies_into_slots_in_turn_are_not_all_started_at_once() -> None:
    (advice,) = pallas_debug.stats(summed, ROWS, target="v5e", estimate=False).advice
    assert advice.kind == "copy-wait"
    assert "a separate loop" not in advice.remedy
    assert advice.remedy.startswith("start the copy for the next iteration")
