"""Copies and signals between devices, under `shard_map`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR
RING = pltpu.CompilerParams(collective_id=7)


def sent_before_any_handshake(x: jax.Array) -> jax.Array:
    def send(x_ref: jax.Ref, out_ref: jax.Ref, send_sem: jax.Ref, receive_sem: jax.Ref) -> None:
        _, right = _neighbours()
        copy = pltpu.make_async_remote_copy(
            x_ref, out_ref, send_sem, receive_sem, device_id={"x": right}
        )
        # The device on the right may not have entered the kernel.
        copy.start()  # FAULT
        copy.wait()

    return _permuted(send, x, handshake=False)


def sent_before_any_handshake_repaired(x: jax.Array) -> jax.Array:
    def send(x_ref: jax.Ref, out_ref: jax.Ref, send_sem: jax.Ref, receive_sem: jax.Ref) -> None:
        right = _meet()
        copy = pltpu.make_async_remote_copy(
            x_ref, out_ref, send_sem, receive_sem, device_id={"x": right}
        )
        copy.start()
        copy.wait()

    return _permuted(send, x, handshake=True)


def _permuted(kernel: Any, x: jax.Array, *, handshake: bool) -> jax.Array:
    def on_each(rows: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=rows,
            in_specs=[HBM],
            out_specs=HBM,
            scratch_shapes=[DMA, DMA],
            compiler_params=RING if handshake else None,
        )(rows)

    return _on_devices(on_each, x, 2)


def received_by_the_send_semaphore(x: jax.Array) -> jax.Array:
    def send(
        x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, send_sem: jax.Ref,
        receive_sem: jax.Ref,
    ) -> None:  # fmt: skip
        right = _meet()
        copy = pltpu.make_async_remote_copy(
            x_ref, tile_ref, send_sem, receive_sem, device_id={"x": right}
        )
        copy.start()
        copy.wait_send()
        # What was sent has left; what the left neighbour sends may not be here.
        out_ref[...] = tile_ref[...] * 2  # FAULT
        copy.wait_recv()

    return _doubled(send, x)


def received_by_the_send_semaphore_repaired(x: jax.Array) -> jax.Array:
    def send(
        x_ref: jax.Ref, out_ref: jax.Ref, tile_ref: jax.Ref, send_sem: jax.Ref,
        receive_sem: jax.Ref,
    ) -> None:  # fmt: skip
        right = _meet()
        copy = pltpu.make_async_remote_copy(
            x_ref, tile_ref, send_sem, receive_sem, device_id={"x": right}
        )
        copy.start()
        copy.wait_recv()
        out_ref[...] = tile_ref[...] * 2
        copy.wait_send()

    return _doubled(send, x)


def _doubled(kernel: Any, x: jax.Array) -> jax.Array:
    def on_each(rows: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=rows,
            in_specs=[HBM],
            scratch_shapes=[pltpu.VMEM((8, 128), F32), DMA, DMA],
            compiler_params=RING,
        )(rows)

    return _on_devices(on_each, x, 2)


def slot_sent_to_before_it_is_consumed(x: jax.Array) -> jax.Array:
    def gather(
        x_ref: jax.Ref, out_ref: jax.Ref, slots_ref: jax.Ref, send_sems: jax.Ref,
        receive_sems: jax.Ref, consumed: jax.Ref,
    ) -> None:  # fmt: skip
        right = _meet()
        slots_ref[0] = x_ref[...]
        for hop in range(3):
            here, there = hop % 2, (hop + 1) % 2
            copy = pltpu.make_async_remote_copy(
                slots_ref.at[here],
                slots_ref.at[there],
                send_sems.at[hop],
                receive_sems.at[hop],
                device_id={"x": right},
            )
            # From the second hop on, the device on the right may still read this slot.
            copy.start()  # FAULT
            out_ref[hop] = slots_ref[here]
            copy.wait()
        out_ref[3] = slots_ref[1]

    return _gathered(gather, x)


def slot_sent_to_before_it_is_consumed_repaired(x: jax.Array) -> jax.Array:
    def gather(
        x_ref: jax.Ref, out_ref: jax.Ref, slots_ref: jax.Ref, send_sems: jax.Ref,
        receive_sems: jax.Ref, consumed: jax.Ref,
    ) -> None:  # fmt: skip
        left, _ = _neighbours()
        right = _meet()
        slots_ref[0] = x_ref[...]
        for hop in range(3):
            here, there = hop % 2, (hop + 1) % 2
            copy = pltpu.make_async_remote_copy(
                slots_ref.at[here],
                slots_ref.at[there],
                send_sems.at[hop],
                receive_sems.at[hop],
                device_id={"x": right},
            )
            if hop:
                pl.semaphore_wait(consumed, 1)
            copy.start()
            out_ref[hop] = slots_ref[here]
            copy.wait()
            if hop < 2:
                pl.semaphore_signal(consumed, 1, device_id={"x": left})
        out_ref[3] = slots_ref[1]

    return _gathered(gather, x)


def _gathered(kernel: Any, x: jax.Array) -> jax.Array:
    def on_each(rows: jax.Array) -> jax.Array:
        parts = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((4, *rows.shape), rows.dtype),
            scratch_shapes=[
                pltpu.VMEM((2, 8, 128), F32),
                pltpu.SemaphoreType.DMA((3,)),
                pltpu.SemaphoreType.DMA((3,)),
                REGULAR,
            ],
            compiler_params=RING,
        )(rows)
        return parts.reshape(32, 128)  # this device's rows first, then those of the left ones

    return _on_devices(on_each, x, 4)


def waits_before_it_signals(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, ready: jax.Ref) -> None:
        _, right = _neighbours()
        # The other device waits here, too.
        pl.semaphore_wait(ready, 1)  # FAULT
        pl.semaphore_signal(ready, 1, device_id={"x": right})
        out_ref[...] = x_ref[...] * 2

    return _signalled(double, x)


def waits_before_it_signals_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, ready: jax.Ref) -> None:
        _, right = _neighbours()
        pl.semaphore_signal(ready, 1, device_id={"x": right})
        pl.semaphore_wait(ready, 1)
        out_ref[...] = x_ref[...] * 2

    return _signalled(double, x)


def _signalled(kernel: Any, x: jax.Array) -> jax.Array:
    def on_each(rows: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=rows, scratch_shapes=[REGULAR])(rows)

    return _on_devices(on_each, x, 2)


def _neighbours() -> tuple[jax.Array, jax.Array]:
    """Indices of the devices on the left and on the right."""
    me, count = lax.axis_index("x"), jnp.int32(lax.axis_size("x"))
    return lax.rem(me + (count - 1), count), lax.rem(me + 1, count)


def _meet() -> jax.Array:
    """Wait until both neighbours are in the kernel; return the index of the right one."""
    left, right = _neighbours()
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in (left, right):
        pl.semaphore_signal(barrier, 1, device_id={"x": neighbour})
    pl.semaphore_wait(barrier, 2)
    return right


def _on_devices(on_each: Callable[[jax.Array], jax.Array], x: jax.Array, count: int) -> jax.Array:
    mesh = jax.make_mesh(
        (count,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
    spread = PartitionSpec("x")
    return jax.shard_map(on_each, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)(x)


def _rolled(x: jax.Array) -> jax.Array:
    """What each of four devices gathers: its own rows, then those of its left neighbours."""
    parts = x.reshape(4, 8, 128)
    return jnp.concatenate([parts[(i - jnp.arange(4)) % 4] for i in range(4)]).reshape(128, 128)


TWO_DEVICES = (jax.ShapeDtypeStruct((16, 128), F32),)
FOUR_DEVICES = (jax.ShapeDtypeStruct((32, 128), F32),)
KERNELS = (
    BrokenKernel(
        fault="DataRace",
        summary="Rows are sent to the right before that device has entered the kernel.",
        function=sent_before_any_handshake,
        repaired=sent_before_any_handshake_repaired,
        reference=lambda x: jnp.roll(x, 8, axis=0),
        args=TWO_DEVICES,
    ),
    BrokenKernel(
        fault="DataRace",
        summary="The receiver of a remote copy waits for what it has sent itself.",
        function=received_by_the_send_semaphore,
        repaired=received_by_the_send_semaphore_repaired,
        reference=lambda x: jnp.roll(x, 8, axis=0) * 2,
        args=TWO_DEVICES,
    ),
    BrokenKernel(
        fault="DataRace",
        summary="A ring gather sends to a slot that the neighbour may not have consumed.",
        function=slot_sent_to_before_it_is_consumed,
        repaired=slot_sent_to_before_it_is_consumed_repaired,
        reference=_rolled,
        args=FOUR_DEVICES,
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="Two devices wait for each other before they signal.",
        function=waits_before_it_signals,
        repaired=waits_before_it_signals_repaired,
        reference=lambda x: x * 2,
        args=TWO_DEVICES,
    ),
)
