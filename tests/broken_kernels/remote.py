"""Copies and signals between devices, under `shard_map`."""

import functools
import inspect

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import sharded

from .record import fault

F32 = jnp.float32
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR
RING = pltpu.CompilerParams(collective_id=7)
TWO_DEVICES = jax.ShapeDtypeStruct((16, 128), F32)


def on_devices(count, *, parts=1, meets=True, **options):
    """Decorate the body of a kernel that each of some devices runs on its 8 rows."""

    def wrap(body):
        @functools.wraps(body)
        def call(x, *, repaired=False):
            def on_each(rows):
                out = jax.ShapeDtypeStruct((parts * 8, 128), F32)
                params = RING if meets or repaired else None
                kernel = functools.partial(body, repaired=repaired)
                return pl.pallas_call(kernel, out, compiler_params=params, **options)(rows)

            return sharded(on_each, x=count)(x)

        call.__signature__ = inspect.signature(lambda x: None)
        return call

    return wrap


def _neighbours():
    """Indices of the devices on the left and on the right."""
    me, count = lax.axis_index("x"), jnp.int32(lax.axis_size("x"))
    return lax.rem(me + (count - 1), count), lax.rem(me + 1, count)


def _meet():
    """Wait until both neighbours are in the kernel; return the index of the right one."""
    left, right = _neighbours()
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in (left, right):
        pl.semaphore_signal(barrier, 1, device_id={"x": neighbour})
    pl.semaphore_wait(barrier, 2)
    return right


def _to(right, source, target, sent, received):
    return pltpu.make_async_remote_copy(source, target, sent, received, device_id={"x": right})


@fault(
    "DataRace",
    "Rows are sent to the right before that device has entered the kernel.",
    lambda x: jnp.roll(x, 8, axis=0),
    TWO_DEVICES,
)
@on_devices(2, meets=False, in_specs=[HBM], out_specs=HBM, scratch_shapes=[DMA, DMA])
def sent_before_any_handshake(x_ref, out_ref, send_sem, receive_sem, repaired=False):
    right = _meet() if repaired else _neighbours()[1]
    copy = _to(right, x_ref, out_ref, send_sem, receive_sem)
    # The device on the right may not have entered the kernel.
    copy.start()  # FAULT
    copy.wait()


@fault(
    "DataRace",
    "The receiver of a remote copy waits for what it has sent itself.",
    lambda x: jnp.roll(x, 8, axis=0) * 2,
    TWO_DEVICES,
)
@on_devices(2, in_specs=[HBM], scratch_shapes=[TILE, DMA, DMA])
def received_by_the_send_semaphore(x_ref, out_ref, tile_ref, send_sem, receive_sem, repaired=False):
    copy = _to(_meet(), x_ref, tile_ref, send_sem, receive_sem)
    copy.start()
    copy.wait_send()
    if repaired:
        copy.wait_recv()
    # What was sent has left; what the left neighbour sends may not be here.
    out_ref[...] = tile_ref[...] * 2  # FAULT
    if not repaired:
        copy.wait_recv()


def _rolled(x):
    """What each of four devices gathers: its own rows, then those of its left neighbours."""
    parts = x.reshape(4, 8, 128)
    return jnp.concatenate([parts[(i - jnp.arange(4)) % 4] for i in range(4)]).reshape(128, 128)


@fault(
    "DataRace",
    "A ring gather sends to a slot that the neighbour may not have consumed.",
    _rolled,
    jax.ShapeDtypeStruct((32, 128), F32),
)
@on_devices(
    4, parts=4, scratch_shapes=[pltpu.VMEM((2, 8, 128), F32), DMA((3,)), DMA((3,)), REGULAR]
)
def slot_sent_to_before_it_is_consumed(
    x_ref, out_ref, slots_ref, send_sems, receive_sems, consumed, repaired=False
):
    left, _ = _neighbours()
    right = _meet()
    slots_ref[0] = x_ref[...]
    for hop in range(3):
        here, there = slots_ref.at[hop % 2], slots_ref.at[(hop + 1) % 2]
        copy = _to(right, here, there, send_sems.at[hop], receive_sems.at[hop])
        if repaired and hop:
            pl.semaphore_wait(consumed, 1)
        # From the second hop on, the device on the right may still read this slot.
        copy.start()  # FAULT
        out_ref[pl.ds(hop * 8, 8)] = here[...]
        copy.wait()
        if repaired and hop < 2:
            pl.semaphore_signal(consumed, 1, device_id={"x": left})
    out_ref[24:32] = slots_ref[1]


@fault(
    "Deadlock",
    "Two devices wait for each other before they signal.",
    lambda x: x * 2,
    TWO_DEVICES,
)
@on_devices(2, meets=False, scratch_shapes=[REGULAR])
def waits_before_it_signals(x_ref, out_ref, ready, repaired=False):
    _, right = _neighbours()
    if repaired:
        pl.semaphore_signal(ready, 1, device_id={"x": right})
    # The other device waits here, too.
    pl.semaphore_wait(ready, 1)  # FAULT
    if not repaired:
        pl.semaphore_signal(ready, 1, device_id={"x": right})
    out_ref[...] = x_ref[...] * 2
