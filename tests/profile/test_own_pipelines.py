"""Advice on pipelines that a kernel runs itself, whose copies have no line of their own."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug

ROWS = jax.ShapeDtypeStruct((2048, 512), jnp.float32)


def pipelined(x: jax.Array) -> jax.Array:
    def kernel(x_hbm: jax.Ref, out_hbm: jax.Ref) -> None:
        def one(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
            out_ref[...] = x_ref[...] * 2.0 + 1.0

        block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
        run = pltpu.emit_pipeline(one, grid=(256,), in_specs=[block], out_specs=[block])
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
