"""Faults that show in several ways, and are one finding of the whole sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.errors import KernelFault
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

HBM = pl.BlockSpec(memory_space=pl.ANY)
X = np.random.default_rng(0).standard_normal((4, 8, 128)).astype(np.float32)


def sanitized(function: Callable[..., Any], *args: Any) -> tuple[Finding, ...]:
    report, _ = pallas_debug.check(function, sanitize=True)(*args)
    assert report.not_checked == ()
    return report.findings


def with_two_tiles(kernel: Any, x: jax.Array) -> jax.Array:
    """Call a kernel on blocks in HBM, with two tiles and a semaphore for each."""
    return pl.pallas_call(
        kernel,
        out_shape=x,
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def reads_too_early(x: jax.Array, *, mismatched: bool) -> jax.Array:
    """Reads a tile before its copy has ended, and waits for what never comes."""

    def kernel(x_ref: Any, out_ref: Any, tiles: Any, sems: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[0], tiles.at[0], sems.at[0])
        copy.start()
        if mismatched:
            pltpu.make_async_copy(x_ref.at[0:2], tiles, sems.at[0]).wait()
        out_ref[0] = tiles[0]
        copy.wait()
        pltpu.make_async_copy(x_ref.at[0], tiles.at[1], sems.at[1]).wait()

    return with_two_tiles(kernel, x)


def test_a_race_before_a_deadlock_is_reported_first(capsys: pytest.CaptureFixture[str]) -> None:
    def early(x: jax.Array) -> jax.Array:
        return reads_too_early(x, mismatched=False)

    with pytest.raises(KernelFault, match=r"^DataRace(.|\n)*\n\nDeadlock") as caught:
        sanitized(early, X)
    fault = caught.value.finding
    assert fault.kind is Fault.DEADLOCK
    assert [f.kind for f in caught.value.findings] == [Fault.DATA_RACE, Fault.DEADLOCK]
    with pytest.raises(Exception, match="Deadlock"), pallas_debug.interpret("machine,sanitize"):
        jax.block_until_ready(early(X))
    printed = capsys.readouterr().err
    assert printed.startswith("DataRace in kernel")
    assert "Deadlock" not in printed  # the exception has its text


def test_a_wait_for_too_much_and_its_deadlock_are_one_finding() -> None:
    with pytest.raises(KernelFault) as caught:
        sanitized(lambda x: reads_too_early(x, mismatched=True), X)
    (found,) = caught.value.findings
    assert found.kind is Fault.WAIT_SIZE_MISMATCH
    (stopped,) = found.consequences
    assert stopped.kind is Fault.DEADLOCK
    assert (
        stopped.cause == "its copies transfer less than its waits take: each start allows one wait"
    )
