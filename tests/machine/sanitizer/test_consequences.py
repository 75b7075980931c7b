"""Faults that use an element which another fault touched are its consequences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import verify
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

F32, I32 = jnp.float32, jnp.int32
X = jnp.ones((8, 128), F32)
HBM = pl.BlockSpec(memory_space=pl.ANY)


def found(kernel: Any, *scratch: Any, x: jax.Array = X, **options: Any) -> tuple[Finding, ...]:
    def call(x: jax.Array) -> Any:
        return pl.pallas_call(kernel, out_shape=X, scratch_shapes=[*scratch], **options)(x)

    return verify(call, x, engines="machine").findings


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [str(finding.kind) for finding in findings]


def test_an_index_that_was_never_written() -> None:
    def kernel(x_ref: Any, o_ref: Any, index: Any) -> None:
        start = index[0]
        o_ref[...] = x_ref[pl.ds(start, 8), :]

    read, *others = found(kernel, pltpu.SMEM((1,), I32))
    assert read.kind in (Fault.UNINITIALIZED_READ, Fault.OUT_OF_BOUNDS_READ)
    assert not others


def test_a_fault_through_memory_and_a_loop() -> None:
    """Racy data are copied and summed in a loop before they produce a NaN."""

    def kernel(x_ref: Any, o_ref: Any, tile: Any, other: Any, sem: Any, sem_2: Any) -> None:
        tile[...] = -jnp.ones_like(tile)
        copy = pltpu.make_async_copy(x_ref, tile, sem)
        copy.start()
        o_ref[...] = tile[...]
        copy.wait()
        pltpu.sync_copy(o_ref, other)
        total = jax.lax.fori_loop(0, 3, lambda i, t: t + other[pl.ds(i, 1), :], jnp.zeros((1, 128)))
        o_ref[pl.ds(0, 1), :] = jnp.sqrt(total)

    dma = pltpu.SemaphoreType.DMA
    tiles = pltpu.VMEM((8, 128), F32), pltpu.VMEM((8, 128), F32)
    (race,) = found(kernel, *tiles, dma, dma, x=-X, in_specs=[HBM])
    assert race.kind is Fault.DATA_RACE
    assert Fault.NAN_PRODUCED in kinds(race.consequences)


@pytest.mark.parametrize("is_clean", [False, True])
def test_faults_of_other_elements_are_faults_of_their_own(is_clean: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any, tile: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, tile, sem)
        copy.start()
        o_ref[...] = tile[...]
        copy.wait()
        if is_clean:  # what the race touched is overwritten before it is used
            o_ref[...] = jnp.ones_like(o_ref)
        o_ref[pl.ds(0, 1), :] = jnp.log(tile[pl.ds(0, 1), :])

    findings = found(
        kernel, pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA, x=-X, in_specs=[HBM]
    )
    assert kinds(findings) == ["DataRace", "NanProduced"]
