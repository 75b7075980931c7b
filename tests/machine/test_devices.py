"""Interpret mode `machine` on several simulated devices, which meet in one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import ran
from meshes import device_mesh, sharded
from pallas_debug_kernels import all_gather, operation

import pallas_debug
from pallas_debug.bridge.hosted.meeting import Meeting
from pallas_debug.errors import MachineError

VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)


@pytest.mark.parametrize(
    "axes", [{"x": 4}, {"x": 3}, {"x": 1}, {"data": 2, "x": 2}, {"x": 2, "data": 2}], ids=str
)
def test_the_bundled_collective(axes: dict[str, int]) -> None:
    x = jnp.arange(24 * 128, dtype=jnp.float32).reshape(24, 128)
    devices = device_mesh(**axes)
    out = ran(lambda x: all_gather(x, mesh=devices), x)
    expected = operation("all_gather").reference(x, mesh=devices)
    np.testing.assert_array_equal(out, expected)
    for shard in out.addressable_shards:  # also where the result is replicated
        np.testing.assert_array_equal(shard.data, expected[shard.index])


def test_devices_that_do_not_communicate_need_not_meet() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + jax.lax.axis_index("x").astype(jnp.float32)

    def shard(x: jax.Array) -> jax.Array:
        add = pl.pallas_call(body, out_shape=x)
        return jax.lax.cond(jax.lax.axis_index("x") == 2, add, lambda x: x, x)

    f = jax.jit(sharded(shard, x=4))
    out = np.asarray(ran(f, jnp.zeros((32, 128))))
    np.testing.assert_array_equal(out[:, 0], np.repeat([0, 0, 2, 0], 8))


@pytest.mark.parametrize("sanitize", [False, True])
def test_devices_that_have_not_come_to_a_scope_yet(sanitize: bool) -> None:
    """Their semaphores count what others signal, and their blocks keep what others copy there."""
    regular = pltpu.SemaphoreType.REGULAR

    @called(block=VMEM)
    def body(x_ref: Any, o_ref: Any) -> None:
        def scope(ready: Any, sent: Any, received: Any) -> None:
            me = jax.lax.axis_index(("x", "y"))
            right = {("x", "y"): jax.lax.rem(me + 1, 4)}
            pl.semaphore_signal(ready, 1, device_id={("x", "y"): jax.lax.rem(me + 3, 4)})
            pl.semaphore_wait(ready, 1)
            pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, right).start()
            pl.semaphore_wait(sent, 1)  # a copy adds 1 to a regular semaphore, not its bytes
            pl.semaphore_wait(received, 1)

        pl.run_scoped(scope, regular, regular, regular)

    f = jax.jit(sharded(body, x=2, y=2))
    x = jnp.arange(32 * 128.0).reshape(32, 128)
    with pallas_debug.interpret("machine", sanitize=sanitize):
        np.testing.assert_array_equal(f(x), jnp.roll(x, 8, axis=0))


def test_a_copy_to_a_device_that_has_not_begun() -> None:
    @called(scratch_shapes=[pltpu.SemaphoreType.DMA] * 2)
    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        right = jax.lax.rem(jax.lax.axis_index("x") + 1, 4)
        pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, (right,)).start()
        pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, (right,)).wait()

    f = jax.jit(sharded(body, x=4))
    x = jnp.arange(32 * 128.0).reshape(32, 128)
    np.testing.assert_array_equal(ran(f, x), jnp.roll(x, 8, axis=0))


def test_a_scope_that_another_device_never_enters() -> None:
    @called()
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        @pl.when(jax.lax.axis_index("x") == 0)
        def _() -> None:
            def scope(ready: Any) -> None:
                pl.semaphore_signal(ready, 1, device_id=(1,))

            pl.run_scoped(scope, pltpu.SemaphoreType.REGULAR)

    f = jax.jit(sharded(body, x=2))
    with pytest.raises(
        Exception, match="`ready` is used from another core or device, but core 0 of"
    ):
        ran(f, jnp.zeros((16, 128)))


def test_runs_that_overlap_do_not_mix() -> None:
    """Each device's first call belongs to the first run, its second to the second."""
    meeting = Meeting("ring", 2)
    results: dict[tuple[int, str], Any] = {}

    def join(device: int, run: str) -> None:
        results[device, run] = meeting.join(device, run, lambda all_: [all_, all_], patience=60)

    threads = []
    for device, run in ((0, "first"), (0, "second"), (1, "first"), (1, "second")):
        threads.append(threading.Thread(target=join, args=(device, run)))
        threads[-1].start()
        if device == 0:
            wait_until(lambda: len(meeting._open) == len(threads))
    for thread in threads:
        thread.join(60)
    assert results == {(i, run): [run, run] for i in (0, 1) for run in ("first", "second")}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_device_whose_neighbours_never_call_the_kernel_is_refused() -> None:
    meeting = Meeting("ring", 3)
    errors: list[str] = []

    def join(device: int) -> None:
        with pytest.raises(MachineError) as error:
            meeting.join(device, [], lambda of_all: [[], [], []], patience=0.2)
        errors.append(str(error.value))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(join, (0, 2)))
        refused = (
            "kernel `ring` communicates between 3 devices, but within 0.2 s only devices 0, 2 "
            "called it, not device 1. Is it in a branch that only some devices take?"
        )
        assert errors == [refused] * 2

        def again(i: int) -> Any:
            return meeting.join(i, [i], lambda of_all: [[sum(a)] for a in of_all], patience=60)

        assert list(threads.map(again, range(3))) == [[0], [1], [2]]


def test_a_mesh_that_is_too_large_or_partitioned_by_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_debug.bridge.hosted.lowering.MAX_DEVICES", 3)
    x = jnp.ones((8, 128))
    with pytest.raises(MachineError, match="runs on 4 devices, but the kernel machine simulates"):
        ran(lambda x: all_gather(x, mesh=device_mesh(x=4)), x)
