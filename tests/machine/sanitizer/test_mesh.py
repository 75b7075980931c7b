"""A ring of devices: copies and signals that leave the mesh, and memory that was never filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import sharded

import pallas_debug
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

N = 4
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
pytestmark = pytest.mark.slow
HAS_NUMBERS = jax.__version_info__ < (0, 12)
"""Whether devices may be named by number; later, an integer is a place on the axis of the mesh."""

Place = Callable[[jax.Array], Any]


def right_of(i: jax.Array) -> jax.Array:
    return lax.rem(i + 1, N)


def left_of(i: jax.Array) -> jax.Array:
    return lax.rem(i + N - 1, N)


def ring(
    *, target: Place = right_of, source: Place = left_of, by_number: bool = False,
    fills: bool = True, ready: int = 2,
) -> Callable[[jax.Array], jax.Array]:  # fmt: skip
    """The sum over all devices: each passes on to the next one what it got last.

    Args:
      target, source: the devices that a device sends to, and signals that it has room.
      by_number: whether devices are named by their numbers, not along the axis.
      fills: whether a device puts its own part into the slot that it sends first.
      ready: how many neighbours a device waits for at the start.
    """

    def at(place: jax.Array) -> dict[str, Any]:
        if by_number:
            return {"device_id": place, "device_id_type": pl.DeviceIdType.LOGICAL}
        return {"device_id": {"x": place}}

    def body(x_ref: Any, o_ref: Any, slots: Any, sent: Any, received: Any, room: Any) -> None:
        me = lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore()
        for other in (left_of(me), right_of(me)):
            pl.semaphore_signal(barrier, 1, **at(other))
        if ready:
            pl.semaphore_wait(barrier, ready)
        if fills:
            slots[0] = x_ref[...]
        o_ref[...] = x_ref[...]

        def step(i: jax.Array, _: int) -> int:
            slot, other = lax.rem(i, 2), lax.rem(i + 1, 2)

            @pl.when(i > 0)
            def _wait() -> None:
                pl.semaphore_wait(room, 1)

            copy = pltpu.make_async_remote_copy(
                slots.at[slot], slots.at[other], sent.at[slot], received.at[other],
                **at(target(me)),
            )  # fmt: skip
            copy.start()
            copy.wait_send()
            copy.wait_recv()
            o_ref[...] += slots[other]

            @pl.when(i < N - 2)
            def _signal() -> None:
                pl.semaphore_signal(room, 1, **at(source(me)))

            return 0

        lax.fori_loop(0, N - 1, step, 0)

    def on_each(x: jax.Array) -> jax.Array:
        vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
        return pl.pallas_call(
            body, out_shape=x, in_specs=[vmem], out_specs=vmem,
            scratch_shapes=[pltpu.VMEM((2, *x.shape), x.dtype), DMA((2,)), DMA((2,)), REGULAR],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)  # fmt: skip

    return sharded(on_each, x=N)


def sanitized(function: Callable[..., Any]) -> tuple[Finding, ...]:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((N * 8, 128)), jnp.float32)
    verdict = pallas_debug.verify(function, x, targets="v5e", engines=["machine"])
    assert verdict.gaps == (), verdict
    return tuple(verdict.findings)


def test_nothing_is_found_in_the_ring() -> None:
    assert sanitized(ring()) == ()


def test_a_slot_is_sent_before_anything_is_in_it() -> None:
    """A copy into it from another device follows, but only after the read: no race explains it."""
    (finding,) = sanitized(ring(fills=False))
    assert finding.kind is Fault.UNINITIALIZED_READ
    assert finding.operand == "slots"
    assert "is read before it is written, and the value reaches an output" in finding.message
    assert finding.source.text == "copy.start()"


@pytest.mark.parametrize("ready", [0, 1])
def test_a_barrier_whose_signals_are_not_all_awaited(ready: int) -> None:
    """What is left on it is reported once for all devices."""
    finding, left = sanitized(ring(ready=ready))
    assert finding.kind is Fault.DATA_RACE
    assert "which may not have entered the kernel" in finding.message
    assert (left.kind, left.operand) == (Fault.SEMAPHORE_LEFT_OVER, "the barrier semaphore")


def test_what_a_device_leaves_unwritten_names_the_device() -> None:
    """Another part is left on each, so it is no part of what is true of all of them."""

    def body(x_ref: Any, o_ref: Any, sem: Any) -> None:
        me, barrier = lax.axis_index("x"), pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={"x": right_of(me)})
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_copy(x_ref, o_ref.at[me], sem)
        copy.start()
        copy.wait()

    def on_each(x: jax.Array) -> jax.Array:
        hbm = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body, out_shape=jax.ShapeDtypeStruct((N, *x.shape), x.dtype), in_specs=[hbm],
            out_specs=hbm, scratch_shapes=[DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)  # fmt: skip

    (finding,) = sanitized(sharded(on_each, x=N))
    assert finding.kind is Fault.OUTPUT_NOT_WRITTEN
    assert finding.message.startswith("nothing writes o_ref[1:4, 0:8, 0:128] on device 0")


@pytest.mark.parametrize(
    "variant, message",
    [
        (
            {"target": lambda i: i + 1},
            "the copy of slots to slots goes to device 4 along mesh axis 'x'; there are devices 0 "
            "to 3",
        ),
        (
            {"source": lambda i: lax.rem(i - 1, N)},
            "the signal of room goes to device -1 along mesh axis 'x'; there are devices 0 to 3",
        ),
        pytest.param(
            {"target": lambda i: i + 1, "by_number": True},
            "the copy of slots to slots goes to device 4; there are devices 0 to 3",
            marks=pytest.mark.skipif(not HAS_NUMBERS, reason="jax has no numbers of devices"),
        ),
    ],
)
def test_a_device_that_the_mesh_does_not_have(variant: dict[str, Any], message: str) -> None:
    (finding,) = sanitized(ring(**variant))
    assert finding.kind is Fault.OUT_OF_BOUNDS_WRITE
    assert finding.message == message
    assert finding.operand == ("room" if "source" in variant else "slots")
    assert finding.cause == "nothing keeps `device_id` within the mesh"
    assert finding.advice == (
        "wrap it around, as in `lax.rem(i + 4, 4)`, or skip the last device with `pl.when`"
    )
    assert finding.engines == ("machine",)
