"""Kernels on several cores of a device, on the kernel machine: `pl.kernel`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import sharded, tensorcore_mesh

from pallas_debug.session import Options, Session

MODES = ("machine", "machine,sanitize")


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_each_core_runs_the_body_and_closes_over_a_scalar(mode: str, number: int) -> None:
    @jax.jit
    def call(x: jax.Array, row: Any) -> jax.Array:
        @pl.kernel(
            out_type=jax.ShapeDtypeStruct((number, 8, 128), jnp.int32), mesh=tensorcore_mesh(number)
        )
        def copy_rows(x_ref: Any, out_ref: Any) -> None:
            core = jax.lax.axis_index("core")
            pltpu.sync_copy(x_ref.at[row + core], out_ref.at[core])

        return copy_rows(x)

    x = np.arange(4 * 8 * 128, dtype=np.int32).reshape(4, 8, 128)
    with Session(Options(interpret=mode)) as session:
        out = jax.block_until_ready(call(x, 1))
    np.testing.assert_array_equal(out, x[1 : 1 + number])
    assert not session.observer.findings
    assert not session.unchecked


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("devices", [1, 2])
def test_cores_meet_at_a_barrier_and_copy_into_scopes_of_each_other(
    devices: int, mode: str
) -> None:
    """Each core has a barrier semaphore of its own, so its signal to the other is not its own."""
    half, sem = pltpu.VMEM((4, 128), jnp.float32), pltpu.SemaphoreType.DMA

    def swap(x: jax.Array) -> jax.Array:
        params = pltpu.CompilerParams(collective_id=0)

        @pl.kernel(
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            mesh=tensorcore_mesh(2),
            compiler_params=params,
        )
        def swaps(x_hbm: Any, o_hbm: Any) -> None:
            core = jax.lax.axis_index("core")
            rows, other = pl.ds(core * 4, 4), {"core": 1 - core}

            @functools.partial(pl.run_scoped, mine=half, theirs=half, sent=sem, came=sem)
            def _(mine: Any, theirs: Any, sent: Any, came: Any) -> None:
                pltpu.sync_copy(x_hbm.at[rows], mine)
                barrier = pltpu.get_barrier_semaphore()
                pl.semaphore_signal(barrier, 1, device_id=other)
                pl.semaphore_wait(barrier, 1)
                copy = pltpu.make_async_remote_copy(mine, theirs, sent, came, device_id=other)
                copy.start()
                copy.wait()
                pltpu.sync_copy(theirs, o_hbm.at[rows])

        return swaps(x)

    x = np.arange(devices * 8 * 128, dtype=np.float32).reshape(devices * 8, 128)
    with Session(Options(interpret=mode)) as session:
        out = jax.block_until_ready(jax.jit(sharded(swap, x=devices))(x))
    expected = x.reshape(devices, 2, 4, 128)[:, ::-1].reshape(x.shape)
    np.testing.assert_array_equal(out, expected)
    assert not session.observer.findings
