"""Values that are no arrays of numbers, between kernels of a program: semaphores, keys of the TPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import sharded

from pallas_debug.session import Options, Session

S = jax.ShapeDtypeStruct
F32 = jnp.float32
X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
ANY, SMEM, VMEM = (pl.BlockSpec(memory_space=s) for s in (pl.ANY, pltpu.SMEM, pltpu.VMEM))
SEMAPHORE = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def sanitized(function: Callable[..., Any], *args: Any) -> tuple[Any, Session]:
    """A jitted function's result in mode `machine`, and the session that sanitized its kernels."""
    with Session(Options(interpret="machine,sanitize")) as session:
        return jax.block_until_ready(jax.jit(function)(*args)), session


def start(x: Any, out: Any, spec: Any) -> Any:
    """Start to copy rows of x, each with a semaphore of its own."""

    @called((out, DMA((2,))), in_specs=[ANY], out_specs=(spec, SEMAPHORE))
    def starting(x_hbm: Any, o_ref: Any, sems: Any) -> None:
        for i in range(2):
            rows = pl.ds(i * 8, 8)
            pltpu.make_async_copy(x_hbm.at[rows], o_ref.at[rows], sems.at[i]).start()

    return starting(x)


def wait(x: Any, y: Any, sems: Any, out: Any, spec: Any, rows: int = 8) -> Any:
    """Wait for the copies."""

    @called(out, in_specs=[ANY, spec, SEMAPHORE], out_specs=spec, input_output_aliases={1: 0})
    def waiting(x_hbm: Any, i_ref: Any, sems: Any, o_ref: Any) -> None:
        for i in range(2):
            part = pl.ds(i * (16 - rows), rows)
            pltpu.make_async_copy(x_hbm.at[part], o_ref.at[part], sems.at[i]).wait()

    return waiting(x, y, sems)


@pytest.mark.parametrize("space", ["hbm", "vmem"])
def test_a_copy_is_awaited_by_the_next_kernel(space: str) -> None:
    out, spec = (S(X.shape, F32), ANY) if space == "hbm" else (pltpu.VMEM(X.shape, F32), VMEM)

    def call(x: Any) -> Any:
        y, sems = start(x, out, spec)
        return wait(x, y, sems, out, spec)

    got, session = sanitized(call, X)
    np.testing.assert_array_equal(got, X)
    assert session.observer.findings == ()


def test_a_copy_to_another_device_is_awaited_by_the_next_kernel() -> None:
    out = S((8, 128), F32)

    def copy(x_hbm: Any, o_hbm: Any, sent: Any, received: Any) -> Any:
        other = {"x": 1 - jax.lax.axis_index("x")}
        return pltpu.make_async_remote_copy(x_hbm, o_hbm, sent, received, device_id=other)

    @called(
        (out, DMA(()), DMA(())),
        in_specs=[ANY],
        out_specs=(ANY, SEMAPHORE, SEMAPHORE),
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    def starting(x_hbm: Any, o_hbm: Any, sent: Any, received: Any) -> None:
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={"x": 1 - jax.lax.axis_index("x")})
        pl.semaphore_wait(barrier, 1)
        copy(x_hbm, o_hbm, sent, received).start()

    @called(
        out,
        in_specs=[ANY, ANY, SEMAPHORE, SEMAPHORE],
        out_specs=ANY,
        input_output_aliases={1: 0},
    )
    def waiting(x_hbm: Any, i_hbm: Any, sent: Any, received: Any, o_hbm: Any) -> None:
        copy(x_hbm, o_hbm, sent, received).wait()

    got, session = sanitized(sharded(lambda x: waiting(x, *starting(x)), x=2), X)
    np.testing.assert_array_equal(got, np.roll(X, 8, axis=0))
    assert session.observer.findings == ()


@pytest.mark.parametrize("mode", ["machine", "machine,sanitize"])
def test_a_wait_for_more_than_the_kernels_before_have_copied(mode: str) -> None:
    def call(x: Any) -> Any:
        out = S(X.shape, F32)
        y, sems = start(x, out, ANY)
        return wait(x, y, sems, out, ANY, rows=9)

    with pytest.raises(Exception) as error, Session(Options(interpret=mode)) as session:
        jax.block_until_ready(jax.jit(call)(X))
    (finding,) = session.observer.findings
    assert finding.message in str(error.value)
    assert str(finding.kind) == "Deadlock"
    assert finding.message == "sems[0] is at 4,096 bytes, but the wait needs 4,608 bytes"


def counted(waits: int) -> Any:
    """What is left of a count of 3, of which another kernel takes a part."""

    @called(REGULAR(()), out_specs=SEMAPHORE)
    def signalling(sem: Any) -> None:
        pl.semaphore_signal(sem, 3)

    @called(S((1,), jnp.int32), in_specs=[SEMAPHORE], out_specs=SMEM)
    def counting(sem: Any, o_ref: Any) -> None:
        pl.semaphore_wait(sem, waits)
        o_ref[0] = pl.semaphore_read(sem)

    return counting(signalling())


def test_counts_go_from_kernel_to_kernel() -> None:
    got, session = sanitized(lambda: counted(waits=1))
    assert got.tolist() == [2]
    assert session.observer.findings == ()
    with pytest.raises(Exception, match="KernelFault") as error:
        sanitized(lambda: counted(waits=5))
    assert (
        "sem is at 3, but the wait needs 5\n  cause: the signals on it, here and in the kernel "
        "that returned it, add up to less than the waits\n"
    ) in str(error.value)
