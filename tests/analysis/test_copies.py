"""Copies that share a semaphore, and waits for several of them, counted in bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.findings.faults import Fault

ROWS = 8
TABLE = jax.ShapeDtypeStruct((32, 128), jnp.float32)


def gather(*, awaited: int, later: int) -> Callable[[Any], Any]:
    """A kernel that copies rows one by one, and waits for rows before it reads and after."""

    def kernel(table_ref: Any, out_ref: Any, rows_ref: Any, sem: Any) -> None:
        for row in range(ROWS):
            pltpu.make_async_copy(table_ref.at[3 * row], rows_ref.at[row], sem).start()

        def wait(rows: int) -> None:
            part = rows_ref.at[pl.ds(0, rows)]
            pltpu.make_async_copy(part, part, sem).wait()

        wait(awaited)
        out_ref[...] = rows_ref[...]
        if later:
            wait(later)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ROWS, 128), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((ROWS, 128), jnp.float32), pltpu.SemaphoreType.DMA],
    )


def test_one_wait_for_all_rows_orders_them(captures: Callable[..., list[Capture]]) -> None:
    (captured,) = captures(gather(awaited=ROWS, later=0), (TABLE,))
    assert analyze(captured, BUILTIN).findings == ()


@pytest.mark.parametrize("awaited", [1, ROWS - 1])
def test_rows_of_which_some_are_awaited_later_are_read_too_early(
    captures: Callable[..., list[Capture]], awaited: int
) -> None:
    (captured,) = captures(gather(awaited=awaited, later=ROWS - awaited), (TABLE,))
    (finding,) = analyze(captured, BUILTIN).findings
    assert finding.kind is Fault.DATA_RACE
    assert finding.operand == "rows_ref"
    assert finding.source is not None
    assert finding.source.text == "out_ref[...] = rows_ref[...]"
