"""Kernels of Mosaic GPU, which are judged in GPU interpret mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.bridge.interpret import params
from pallas_debug.bridge.interpret.extend import gpu
from pallas_debug.errors import UsageError
from pallas_debug.model import Finding
from pallas_debug.verdict.run import verify

try:
    params.fields("gpu")
except UsageError:
    HAS_GPU = False
else:
    HAS_GPU = True

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="this jax has no Mosaic GPU")
X = np.arange(128, dtype=np.float32)

KEY = "HostAllocationKey(memory_space_id={}, device_id=0, block_id=0, thread_id=0, buffer_id=103)"
THREAD = "Warpgroup(device_id=0, cluster_id=0, block_id=0, warpgroup_id={})"
RACE = (
    "INTERNAL: CpuCallback error\nRuntimeError: RACE DETECTED\n"
    "  {0} of {2}[(slice(0, 128, 1),)] from {3}, kernels.py:35:21 (call.<locals>.kernel)\n"
    "  clock: <NpVectorClock object at 0x7f>\n"
    "  {1} of {2}[(slice(0, 64, 1),)] from {4}, kernels.py:34:8 (call.<locals>.kernel)\n"
    "  clock: <NpVectorClock object at 0x7f>\n"
)


def test_a_race_is_read_from_the_exception() -> None:
    threads = THREAD.format(0), THREAD.format(1)
    found = gpu.fault_in(
        RuntimeError(RACE.format("read", "write", KEY.format(1), *threads)), ["other", "kernel"]
    )
    assert found is not None
    assert found.source is not None
    assert found.other is not None
    assert (found.kind, found.kernel, found.engines) == ("DataRace", "kernel", ("gpu interpret",))
    assert (found.source.line, found.other.line) == (35, 34)
    assert found.message == (
        f"[0:128] of a buffer in SMEM is read by {threads[0]} here and written by {threads[1]} on "
        "the other side; nothing orders the two"
    )
    assert found.cause == (
        "a copy or another warpgroup has not been waited for, or a store to SMEM not committed"
    )
    assert found.advice == (
        "wait for the copy (plgpu.barrier_wait, plgpu.wait_smem_to_gmem) or for a barrier at which "
        "the other warpgroup arrives; between a store to SMEM and a copy of it, call "
        "plgpu.commit_smem()"
    )
    shared = gpu.fault_in(
        RuntimeError(RACE.format("write", "write", KEY.format(0), *threads)), ["kernel"]
    )
    assert shared is not None
    assert shared.cause == "the blocks and warpgroups of a kernel run at the same time"
    assert shared.advice == (
        "let each access elements of its own, or wait for the copy that accesses them"
    )


def test_an_access_out_of_bounds_is_read_from_the_exception() -> None:
    text = (
        f"ValueError: Out-of-bounds swap of {KEY.format(0)}: swapping [Access(range=(slice(128, "
        "192, 1),), permutation=None)] but buffer has shape (128,) ."
    )
    found = gpu.fault_in(RuntimeError(text), ["kernel"])
    assert found is not None
    assert found.kind == "OutOfBoundsWrite"
    assert found.message == (
        "[128:192] of a buffer in GMEM reaches 64 past the end of dimension 0 of [128]"
    )
    read = gpu.fault_in(RuntimeError(text.replace("swap ", "read ")), ["kernel"])
    assert read is not None
    assert read.kind == "OutOfBoundsRead"
    assert gpu.fault_in(RuntimeError("NotImplementedError: predicate"), ["kernel"]) is None
    assert gpu.fault_in(None, ["kernel"]) is None


def test_a_deadlock_is_read_from_the_exception() -> None:
    waits = f"{THREAD.format(0)} at kernels.py:154:8 (call.<locals>.kernel)"
    found = gpu.fault_in(RuntimeError(f"RuntimeError: DEADLOCK: {waits}\n"), ["kernel"])
    assert found is not None
    assert found.source is not None
    assert (found.kind, found.source.line) == ("Deadlock", 154)
    assert found.message == f"threads wait for barriers that are never completed: {waits}"
    assert found.cause == (
        "the barrier expects more arrivals than there are, or was waited for before"
    )
    assert found.advice == (
        "set num_arrivals to the number of copies and arrivals of each phase, and wait once for "
        "each phase"
    )


def copied(*, waits: int = 1, commits: bool = True, start: int = 0) -> Callable[..., Any]:
    """A function that copies an array through shared memory, and doubles it there."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def kernel(x_ref: Any, o_ref: Any, shared_ref: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, shared_ref, barrier)
        for _ in range(waits):
            plgpu.barrier_wait(barrier)
        shared_ref[...] = shared_ref[...] * 2
        if commits:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(shared_ref, o_ref)
        plgpu.wait_smem_to_gmem(0)
        block = pl.ds((lax.axis_index("block") + start) * 128, 128)
        o_ref[block] = o_ref[block] + 1

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(X.shape, X.dtype),
        grid=(1,),
        grid_names=("block",),
        scratch_types=[plgpu.SMEM(X.shape, jnp.float32), plgpu.Barrier()],
    )


def found_in(function: Callable[..., Any]) -> tuple[Finding, ...]:
    verdict = verify(function, X, engines="machine")
    (outcome,) = [o for o in verdict.outcomes if o.engine == "machine"]
    assert outcome.status == ("found" if verdict.findings else "ok")
    reason = "unwritten memory and numbers, which GPU interpret mode does not judge"
    assert [gap.reason for gap in outcome.gaps] == [reason]
    return verdict.findings


@needs_gpu
def test_kernels_are_judged_in_gpu_interpret_mode() -> None:
    assert found_in(copied()) == ()
    (early,) = found_in(copied(waits=0))
    assert (early.kind, early.engines) == ("DataRace", ("gpu interpret",))
    assert early.source is not None
    assert early.source.text == "shared_ref[...] = shared_ref[...] * 2"
    (uncommitted,) = found_in(copied(commits=False))
    assert uncommitted.kind == "DataRace"
    (outside,) = found_in(copied(start=1))
    assert outside.kind in ("OutOfBoundsRead", "OutOfBoundsWrite")
    assert outside.source is not None
    assert outside.source.text == "o_ref[block] = o_ref[block] + 1"


@needs_gpu
def test_a_barrier_that_is_never_completed_ends_the_run() -> None:
    raising = pytest.raises(Exception, match="DEADLOCK: ")
    with gpu.stopping_deadlocks(1), raising as caught, pallas_debug.interpret("auto"):
        copied(waits=2)(X)
    found = gpu.fault_in(caught.value, ["kernel"])
    assert found is not None
    assert found.kind == "Deadlock"
    assert found.source is not None
    assert found.source.text == "plgpu.barrier_wait(barrier)"
