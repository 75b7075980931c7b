"""Sums within `emit_pipeline`, and sums that the kernel copies out itself: which reads are stale."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

ANY = pl.BlockSpec(memory_space=pl.ANY)
ROWS, COLUMNS = 2, 2


def numbers(rows: int = 16 * ROWS) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 128 * COLUMNS)).astype(np.float32)


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
        "nothing writes 512 of 1,024 elements of a block that the pipeline copies to out_hbm"
    )
    assert gap.advice == (
        "store to all of a block of out_hbm before the pipeline moves on to the next one"
    )
