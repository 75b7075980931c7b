"""Causes of races, deadlocks and copies that nothing waits for, where several are possible."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import arrays_of, decoded

from pallas_debug.findings.faults import Fault
from pallas_debug.machine import run
from pallas_debug.machine.machine import Stopped
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.model import Finding

F32 = jnp.float32
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)


def found(function: Any, *args: Any) -> list[Finding]:
    call = decoded(function, args)
    devices = arrays_of(call, args)
    observer = OrderSanitizer(call, devices=len(devices))
    try:
        return list(run.run(call, devices, observers=[observer]).findings)
    except Stopped:
        return observer.deadlock()


def test_a_race_and_a_missing_wait_are_one_where_a_scope_has_ended() -> None:
    def double(x):
        def kernel(x_ref, out_ref):
            def body(tile_ref, sem):
                pltpu.make_async_copy(x_ref, tile_ref, sem).start()
                out_ref[...] = tile_ref[...] * 2

            pl.run_scoped(body, pltpu.VMEM((32, 128), F32), DMA)

        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(kernel, in_specs=[anywhere], out_shape=x)(x)

    (race,) = found(double, X)
    assert race.kind is Fault.DATA_RACE


def test_a_wait_is_for_the_copy_of_its_own_slices() -> None:
    """Copies of one size share a semaphore and a destination: the unawaited ones are the first."""

    def kernel(x_ref, out_ref, sem):
        def row(i):
            part = pl.ds(i * 8, 8)
            return pltpu.make_async_copy(x_ref.at[part], out_ref.at[part], sem)

        row(0).start()  # FAULT
        for i in range(1, 4):
            row(i).start()
            row(i).wait()

    hbm = pl.BlockSpec(memory_space=pl.ANY)

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel, out_shape=x, in_specs=[hbm], out_specs=hbm, scratch_shapes=[DMA]
        )(x)

    (finding,) = found(call, X)
    assert finding.kind is Fault.DMA_NOT_AWAITED
    assert finding.source.text == "row(0).start()  # FAULT"
