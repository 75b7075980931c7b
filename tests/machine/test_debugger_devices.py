"""The debugger on kernels that run on several devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import meshes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import stepper
from pallas_debug.errors import UsageError
from pallas_debug.machine.debugger.live import LiveRun
from pallas_debug.stepping.prompt import CommandPrompt
from pallas_debug.stepping.session import StepSession

DEVICES = 3
X = np.arange(DEVICES * 8 * 128, dtype=np.float32).reshape(-1, 128)


def on_devices(kernel: Any, x: Any, **options: Any) -> Any:
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32), **options)
    return jax.jit(meshes.sharded(call, x=DEVICES))(x)


def shift_kernel(x_ref: Any, out_ref: Any, sent: Any, received: Any) -> None:
    me = jax.lax.axis_index("x")
    left, right = jax.lax.rem(me + DEVICES - 1, DEVICES), jax.lax.rem(me + 1, DEVICES)
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id={"x": left})
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, sent, received, device_id={"x": right})
    copy.start()
    copy.wait()  # the last line


def shift(x: Any) -> Any:
    """Each device sends its rows to the next one."""
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return on_devices(
        shift_kernel, x, in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )  # fmt: skip


def doubled_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def doubled(x: Any) -> Any:
    return on_devices(doubled_kernel, x)


def opened(function: Callable[[Any], Any], **options: Any) -> stepper.CapturedCall:
    return stepper.capture(lambda: function(X), **options)


@pytest.fixture(scope="module")
def shifting() -> StepSession:
    captured = opened(shift)
    np.testing.assert_array_equal(captured.result, np.roll(X, 8, axis=0))
    return captured.session


def line(comment: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(comment))


@pytest.mark.slow
def test_devices_take_turns_in_both_directions(shifting: StepSession) -> None:
    assert isinstance(shifting.track, LiveRun)
    assert (shifting.place.device, shifting.place.devices) == (0, DEVICES)
    places = [shifting.place]
    while shifting.step(False) is None:
        places.append(shifting.place)
    assert {place.device for place in places} == {0, 1, 2}
    # Each runs until its neighbour has to signal it.
    order = [place.device for place in places]
    turns = [d for i, d in enumerate(order) if i == 0 or order[i - 1] != d]
    assert turns[:3] == [0, 1, 2]
    for place in reversed(places):
        shifting.step(True)
        assert shifting.place.key == place.key
    assert shifting.place.key == places[0].key


def test_the_values_of_a_device_are_shown_until_the_next_step(shifting: StepSession) -> None:
    prompt = CommandPrompt(shifting)
    shifting.to_line(line("# the last line"), False)
    here = shifting.place.device
    for device in range(DEVICES):
        (message,) = prompt.execute(f"device {device}")
        mark = "->" if device == here else "* "
        assert message.startswith(f"{mark} shift_kernel · device {device} of {DEVICES}")
        assert prompt.execute("p x_ref[0, 0]") == [f"{device * 1024}.0"]
        assert prompt.execute("p me") == [str(device)]
    assert prompt.execute("device 3") == [
        "error: there is no device 3: the kernel runs on devices 0 to 2"
    ]
    assert prompt.execute("device x") == ["error: expected the number of a device, found 'x'"]
    first, *others = sorted(prompt.execute("device"), key=lambda message: "->" not in message)
    assert first.startswith(f"-> shift_kernel · device {here} of {DEVICES}")
    assert len(others) == DEVICES - 1
    flying = [text for text in prompt.execute("info") if text.startswith("DMA")]
    assert flying[0].startswith(
        f"DMA 0 in flight: x_ref on device {here} → out_ref on device {(here + 1) % DEVICES}, "
        "4,096 bytes"
    )
    shifting.step(False)
    value = shifting.track.value("x_ref")
    assert value[0, 0] == shifting.place.device * 1024


def test_who_wrote_on_another_device(shifting: StepSession) -> None:
    prompt = CommandPrompt(shifting)
    shifting.run()
    prompt.execute("device 1")
    assert prompt.execute("p out_ref[0, 5]") == ["5.0"]
    wrote, given = prompt.execute("who out_ref[0, 5]")
    assert wrote.startswith("out_ref[0, 5] is 5: copied by a DMA at shift_kernel · device ")
    assert given.strip() == "x_ref[0, 5] is 5: given by the caller"
    assert prompt.execute("p out_ref[0, 5]") == ["5.0"]


@pytest.mark.slow
def test_devices_that_run_a_kernel_each_on_its_own() -> None:
    session = opened(doubled).session
    prompt = CommandPrompt(session)
    session.run()
    for device in range(DEVICES):
        assert prompt.execute(f"device {device}") == [f"*  device {device} has ended"]
        assert prompt.execute("p whole(out_ref)[0, 1]") == [f"{2.0 * (device * 1024 + 1)}"]
    with pytest.raises(UsageError) as error:
        opened(doubled, call=2)
    assert str(error.value) == ("kernel `doubled_kernel` was called once: there is no call 2")


def test_an_error_of_the_run_says_more_than_why_its_calls_were_not_kept() -> None:
    def run() -> None:
        jax.jit(shift).lower(X)
        raise ValueError("before it ran")

    with pytest.raises(ValueError, match="before it ran"):
        stepper.capture(run)
