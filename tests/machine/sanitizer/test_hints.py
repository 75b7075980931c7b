"""Hints from a run: what looks unintended, and fails nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import passed

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Hint


def hints(function: Callable[..., Any], *args: Any) -> Sequence[Hint]:
    """Hints that the sanitizer gives for a kernel in which it finds no fault."""
    call, arrays = passed(function, args)
    ran = run.run(call, arrays, observers=areas.observers(call, arrays))
    assert not ran.findings
    return ran.hints


def test_an_output_block_that_is_written_again_after_another_one() -> None:
    """A table that is not sorted; a later visit stores the whole block, so nothing is undefined."""

    def call(rows: jax.Array, x: jax.Array) -> jax.Array:
        def kernel(rows_ref: Any, x_ref: Any, out_ref: Any) -> None:
            out_ref[...] = x_ref[...]

        block = pl.BlockSpec((8, 128), lambda t, rows: (t, 0))
        grid_spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(7,),
            in_specs=[block],
            out_specs=pl.BlockSpec((8, 128), lambda t, rows: (rows[t], 0)),
        )
        out = jax.ShapeDtypeStruct((32, 128), x.dtype)
        return pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=out)(rows, x)

    x = np.arange(56 * 128, dtype=np.float32).reshape(56, 128)
    found = hints(call, np.array([0, 1, 0, 2, 2, 2, 3], np.int32), x)
    (hint,) = (hint for hint in found if hint.kind == "several writers")
    assert hint.message == (
        "grid points (0,) and (2,) write different values to one element of out_ref, and the last "
        "one wins"
    )
