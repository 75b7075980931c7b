"""Causes of races, deadlocks and copies that nothing waits for, where several are possible."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec
from machine_runs import arrays_of, decoded

from pallas_debug.findings.faults import Fault
from pallas_debug.machine import run
from pallas_debug.machine.machine import Stopped
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.model import Finding

F32 = jnp.float32
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
N = 4
X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)


def found(function: Any, *args: Any) -> list[Finding]:
    call = decoded(function, args)
    devices = arrays_of(call, args)
    observer = OrderSanitizer(call, devices=len(devices))
    try:
        return list(run.run(call, devices, observers=[observer]).findings)
    except Stopped:
        return observer.deadlock()


def on_ring(kernel: Any, scratch: list[Any]) -> Any:
    def on_each(rows: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel, out_shape=rows, scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(rows)  # fmt: skip

    mesh = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    return jax.shard_map(on_each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def meet(signals: tuple[int, ...] = (1, N - 1)) -> jax.Array:
    me = lax.axis_index("x")
    barrier = pltpu.get_barrier_semaphore()
    for step in signals:
        pl.semaphore_signal(barrier, 1, device_id={"x": lax.rem(me + step, N)})
    pl.semaphore_wait(barrier, 2)
    return me


@pytest.mark.skipif(jax.device_count() < N, reason="needs four devices")
def test_room_is_signalled_to_the_wrong_neighbour() -> None:
    """Data goes to the left, and so does the signal that a slot is free, but not to the sender."""

    def kernel(x_ref, out_ref, slots, part, sent, received, room):
        me = meet()
        left = {"x": lax.rem(me + N - 1, N)}
        part[...] = x_ref[...]
        for step in range(N - 1):
            slot = step % 2
            copy = pltpu.make_async_remote_copy(
                part, slots.at[slot], sent, received.at[slot], device_id=left
            )
            if step >= 2:
                pl.semaphore_wait(room, 1)
            copy.start()
            copy.wait()
            part[...] = slots[slot] + x_ref[...]
            if step < N - 3:
                pl.semaphore_signal(room, 1, device_id=left)
        out_ref[...] = part[...]

    tile = pltpu.VMEM((8, 128), F32)
    scratch = [pltpu.VMEM((2, 8, 128), F32), tile, DMA, DMA((2,)), REGULAR]
    races = [f for f in found(on_ring(kernel, scratch), X) if f.kind is Fault.DATA_RACE]
    assert len(races) == 1
    assert races[0].operand == "slots"
    assert "and is not notified when that use ends" in str(races[0].cause)
    assert "wait for received" not in str(races[0].advice)


@pytest.mark.skipif(jax.device_count() < N, reason="needs four devices")
@pytest.mark.parametrize("missing", ["every", "first"])
def test_a_copy_from_another_device_that_is_not_waited_for(missing: str) -> None:
    """The sums go around in slots of a buffer; a wait that is missing lets each step read early."""

    def kernel(x_ref, out_ref, slots, part, moved, sent, received):
        me = meet()
        part[...] = x_ref[...]
        for step in range(N - 1):
            copy = pltpu.make_async_remote_copy(
                part, slots.at[step], sent, received, device_id={"x": lax.rem(me + 1, N)}
            )
            copy.start()
            copy.wait_send()
            if missing == "first" and step:
                copy.wait_recv()
            pltpu.sync_copy(slots.at[step], moved)
            part[...] = moved[...] + x_ref[...]
        out_ref[...] = part[...]

    tile = pltpu.VMEM((8, 128), F32)
    scratch = [pltpu.VMEM((N - 1, 8, 128), F32), tile, tile, DMA, DMA]
    (race,) = [f for f in found(on_ring(kernel, scratch), X) if f.kind is Fault.DATA_RACE]
    assert str(race.advice).startswith("wait for received before this access")


@pytest.mark.skipif(jax.device_count() < N, reason="needs four devices")
@pytest.mark.parametrize("fills", [True, False])
def test_what_arrives_is_sent_on_before_it_is_awaited(fills: bool) -> None:
    """What was in the slot before, if anything, is not what the device is to send."""

    def kernel(x_ref, out_ref, slots, sent, received):
        if fills:
            slots[...] = jnp.zeros_like(slots)
        right = {"device_id": {"x": lax.rem(meet() + 1, N)}}
        one = pltpu.make_async_remote_copy(x_ref, slots.at[0], sent.at[0], received.at[0], **right)
        two = pltpu.make_async_remote_copy(
            slots.at[0], slots.at[1], sent.at[1], received.at[1], **right
        )
        one.start()
        two.start()
        one.wait()
        two.wait()
        out_ref[...] = slots[1]

    scratch = [pltpu.VMEM((2, 8, 128), F32), DMA((2,)), DMA((2,))]
    (race,) = [f for f in found(on_ring(kernel, scratch), X) if f.kind is Fault.DATA_RACE]
    assert str(race.advice).startswith("wait for received[0] before this access")


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
    assert finding.source is not None
    assert finding.source.text == "row(0).start()  # FAULT"
