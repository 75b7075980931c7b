"""Findings of TPU interpret mode over several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec
from pallas_debug_kernels import all_gather, right_permute
from pallas_debug_kernels.ops.pipelined import (
    dma_copy,
    dma_matmul,
    pipelined_copy,
    pipelined_matmul,
)
from tpu_interpreted import DMA, EAGER, F32, HBM, PLAIN, RACES, REGULAR, Seen, launch

from pallas_debug.bridge.interpret import tpu_interpret
from pallas_debug.model import Finding
from pallas_debug.render import finding_text


def on_four_devices(kernel: Callable[..., None], **options: Any) -> Callable[[], Any]:
    def block(x: jax.Array) -> Any:
        return launch(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), F32), **options)(x)

    return on_mesh(block)


def on_mesh(block: Callable[[jax.Array], Any]) -> Callable[[], Any]:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("x")
    call = jax.shard_map(block, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return lambda: jax.jit(call)(jnp.ones((32, 128), F32))


def right_of(me: Any) -> Any:
    return {"device_id": ((me + 1) % 4,)}


@pytest.mark.slow
def test_one_device_reads_past_the_end_and_all_of_them_say_why() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[pl.ds((lax.axis_index("x") == 2) * 4, 8), :]

    seen = Seen(on_four_devices(kernel))
    assert seen.only.values["device"] == "2"
    assert finding_text(seen.only) in str(seen.error)

    def sound(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + lax.axis_index("x")

    found: list[Finding] = []
    with tpu_interpret.reporting(found.append), pltpu.force_tpu_interpret_mode(PLAIN):
        for _ in range(2):
            with pytest.raises(Exception, match="KernelFault"):
                jax.block_until_ready(on_four_devices(kernel)())
            result = on_four_devices(sound)()
            np.testing.assert_array_equal(result[:, 0], 1 + np.repeat(np.arange(4), 8))


@pytest.mark.slow
def test_one_device_is_not_signalled() -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        me = lax.axis_index("x")

        @pl.when(me != 2)
        def _() -> None:
            pl.semaphore_signal(sem, 1, **right_of(me))

        pl.semaphore_wait(sem, 1)
        out_ref[...] = x_ref[...]

    seen = Seen(on_four_devices(kernel, scratch_shapes=[REGULAR]))
    assert seen.text[2] == "  sem on device 3 is at 0, but the wait needs 1"
    assert seen.text[3] == "  cause: it is never signalled"
    assert finding_text(seen.only) in str(seen.error)


def test_all_devices_wait_and_each_line_is_told_once() -> None:
    def kernel(x_ref: Any, out_ref: Any, sem: Any) -> None:
        pl.semaphore_wait(sem, 1)

    seen = Seen(on_four_devices(kernel, scratch_shapes=[REGULAR]), hang_after=60.0)
    assert "; 3 more threads wait, too" in seen.only.message


@pytest.mark.parametrize("missing", [(2,), (0, 3)])
def test_a_device_fails_before_the_kernel(missing: tuple[int, ...]) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + 1

    def host(device: Any, x: Any) -> Any:
        if fails and int(device) in missing:
            raise ValueError("bad shard")
        return x

    def block(x: jax.Array) -> Any:
        x = jax.pure_callback(host, x, lax.axis_index("x"), x)
        return launch(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), F32))(x)

    fails = True
    call = on_mesh(block)
    seen = Seen(call)
    absent = {1: "device 2", 2: "devices 0 and 3"}[len(missing)]
    assert seen.only.message == (
        f"{4 - len(missing)} of 4 devices wait to begin the kernel, but {absent} never reached it, "
        "and the process has been idle for 1 s"
    )
    assert seen.only.cause == (
        f"the program of {absent} has failed before the kernel, waits there, or does not call it"
    )
    assert seen.only.advice == (
        "look for an exception in what runs before the kernel, such as a callback (jax raises it "
        "only once all devices have ended), and for a branch that only some devices take"
    )
    assert "bad shard" in str(seen.error) or finding_text(seen.only) in str(seen.error)

    fails = False
    again = Seen(call)
    assert again.findings == []
    np.testing.assert_array_equal(again.result, 2)


@pytest.mark.slow
def test_what_arrives_from_another_device_is_never_awaited() -> None:
    def kernel(x_ref: Any, out_ref: Any, send: Any, arrive: Any) -> None:
        copy = pltpu.make_async_remote_copy(
            x_ref, out_ref, send, arrive, **right_of(lax.axis_index("x"))
        )
        copy.start()
        copy.wait_send()

    call = on_four_devices(kernel, in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA, DMA])
    for params in (PLAIN, EAGER):
        seen = Seen(call, params)
        assert seen.only.kind == "DmaNotAwaited"
        assert seen.only.values["semaphore"] == "arrive"


@pytest.mark.slow
def test_a_copy_adds_one_to_a_regular_semaphore() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        def body(send: Any, arrive: Any) -> None:
            device = right_of(lax.axis_index("x"))
            pltpu.make_async_remote_copy(x_ref, out_ref, send, arrive, **device).start()
            pl.semaphore_wait(send, 1)
            pl.semaphore_wait(arrive, 1)

        pl.run_scoped(body, REGULAR, REGULAR)

    call = on_four_devices(kernel, in_specs=[HBM], out_specs=HBM)
    for params in (PLAIN, EAGER):
        seen = Seen(call, params)
        assert (seen.findings, seen.error) == ([], None)


SOUND: list[tuple[Callable[..., Any], dict[str, int]]] = [
    (dma_copy, {"block_rows": 16}),
    (pipelined_copy, {"block_rows": 16}),
    (dma_matmul, {"block_m": 16, "block_n": 128, "block_k": 128}),
    (pipelined_matmul, {"block_m": 16, "block_n": 128, "block_k": 128}),
    (all_gather, {}),
    (right_permute, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["on_wait", "eager"])
@pytest.mark.parametrize(
    "function, blocks", SOUND, ids=lambda value: getattr(value, "__name__", "")
)
def test_sound_kernels_with_copies_of_their_own(
    function: Callable[..., Any], blocks: dict[str, int], execution: Any
) -> None:
    x = jnp.arange(32 * 256, dtype=F32).reshape(32, 256) / 1000
    y = (jnp.eye(256, dtype=F32),) if "matmul" in function.__name__ else ()
    params = pltpu.InterpretParams(
        detect_races=True, vector_clock_size=1024, dma_execution_mode=execution
    )
    seen = Seen(lambda: function(x, *y, **blocks), params)
    assert seen.error is None
    assert seen.findings == []
    if y:
        np.testing.assert_allclose(seen.result, x, rtol=1e-6)


# The context itself.


@pytest.mark.slow
@pytest.mark.parametrize("is_one", [True, False], ids=["one semaphore", "two"])
def test_what_one_device_sends_after_another_copy_has_left_arrives_after_it(is_one: bool) -> None:
    """jax's own all-gather has one semaphore for all of its hops, and may be ahead by one."""

    def kernel(x_ref: Any, out_ref: Any, tiles: Any, send: Any, arrive: Any, *sems: Any) -> None:
        me, (ready, both) = lax.axis_index("x"), sems
        tiles[0] = x_ref[...]
        tiles[1] = x_ref[...] + 1
        tiles[2] = jnp.zeros_like(x_ref)
        pl.semaphore_signal(ready, 1, device_id=((me + 3) % 4,))
        pl.semaphore_wait(ready, 1)

        def copy(source: int, target: int, arrived: int) -> Any:
            arrived = 0 if is_one else arrived
            return pltpu.make_async_remote_copy(
                tiles.at[source], tiles.at[target], send, arrive.at[arrived], **right_of(me)
            )

        copies = copy(0, 2, 0), copy(1, 3, 1)
        for one in copies:
            one.start()
            one.wait_send()
        pl.semaphore_signal(both, 1, **right_of(me))
        pl.semaphore_wait(both, 1)
        first, last = copies if is_one else copies[::-1]
        first.wait_recv()
        out_ref[...] = tiles[2]
        last.wait_recv()

    scratch = [pltpu.VMEM((4, 8, 128), F32), DMA, DMA((2,)), REGULAR, REGULAR]
    for params in (PLAIN, RACES):
        seen = Seen(on_four_devices(kernel, scratch_shapes=scratch), params)
        assert not seen.findings
        assert seen.error is None
        np.testing.assert_array_equal(seen.result, 1)


LARGE_OPERANDS = """
import jax, jax.numpy as jnp, pallas_debug
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec as P

def add(x_ref, out_ref):
    out_ref[...] = x_ref[...] + 1

def call(x):
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    x = pl.pallas_call(pltpu.sync_copy, out_shape=x, in_specs=[hbm], out_specs=hbm)(x)
    return pl.pallas_call(add, out_shape=x)(x)

mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
call = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
with pallas_debug.interpret("tpu"):
    assert call(jnp.ones((1024, 128))).sum() == 2 * 1024 * 128
"""


@pytest.mark.slow
def test_large_operands_reach_as_many_devices_as_xla_has_threads() -> None:
    # NPROC is the size of XLA's pool of threads, and jax's own mode waits for ever.
    environment = {
        **os.environ,
        "NPROC": "4",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    words = [sys.executable, "-c", LARGE_OPERANDS]
    subprocess.run(words, env=environment, timeout=60, check=True)
