"""Who wrote an element of an output: the writes that the sanitizer of memory remembers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import calls_of, sanitized

from pallas_debug.machine.shadow import shadow, tracking

TILE = pltpu.VMEM((8, 128), jnp.float32)


def _writers_of(tracker: Any, buffer: Any, index: Any = ...) -> list[Any]:
    """The writes from which elements of a buffer come, latest first."""
    found = tracker.shadows[buffer.number]
    numbers = found.numbers[index]
    return [tracker.writes[n] for n in np.unique(numbers)[::-1].tolist() if n > shadow.GIVEN]


def _writers(tracker: Any, output: int, index: Any = ..., device: int = 0) -> list[Any]:
    """The writes from which elements of a result come, latest first."""
    found = [s.buffer for s in tracker.shadows.values() if s.buffer.kind == "output"]
    return _writers_of(tracker, [b for b in found if b.device == device][output], index)


@pytest.mark.parametrize("limit", [4, 1 << 17])
def test_who_wrote_an_element_by_a_dma_in_a_loop(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MAX_RECORDS", limit)

    @called(
        out_specs=pl.BlockSpec(memory_space=pl.ANY), scratch_shapes=[TILE, pltpu.SemaphoreType.DMA]
    )
    def kernel(x_ref, out_ref, tile_ref, sem):
        def row(i: jax.Array, _: None) -> None:
            tile_ref[pl.ds(i, 1), :] = x_ref[pl.ds(i, 1), :]

        lax.fori_loop(0, 8, row, None)
        lax.fori_loop(0, 8, row, None)
        copy = pltpu.make_async_copy(tile_ref, out_ref, sem)
        copy.start()
        copy.wait()

    ((call, arrays),) = calls_of(kernel, [np.zeros((8, 128), np.float32)])
    findings, sanitizer = sanitized(call, arrays)
    assert not findings
    (written,) = _writers(sanitizer, 0, (3, 5))
    tile = written.copy.source.buffer
    (stored,) = _writers_of(sanitizer, tile, (3, 5))
    assert (stored.copy, stored.iterations) == (None, (3,))
    assert [record.iterations for record in _writers_of(sanitizer, tile)] == [
        (i,) for i in range(7, -1, -1)
    ]
    # The first eight rows were replaced.
    assert sanitizer.count == 17
    assert (len(sanitizer.writes) < 17) == (limit == 4)
