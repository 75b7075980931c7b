"""Devices that answer as a chip: to code that queries them, not to jax, which runs on the CPU."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import default_backend
from jax._src import xla_bridge
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_debug.bridge import chip
from pallas_debug.compiler import targets

V6E = targets.resolve("v6e")

PLATFORMS: dict[str, Callable[[], str]] = {
    "default_backend": lambda: jax.default_backend(),
    "default_backend, imported before": lambda: default_backend(),
    "a device": lambda: jax.devices()[0].platform,
    "a local device": lambda: jax.local_devices()[0].platform,
    "a generator": lambda: next(d.platform for d in jax.devices()),
    "attrgetter": lambda: operator.attrgetter("platform")(jax.devices()[0]),
    "an array's device": lambda: jnp.ones(1).device.platform,  # type: ignore[union-attr]
    "a client": lambda: xla_bridge.get_backend().platform,
    "devices by platform": lambda: jax.devices("tpu")[0].platform,
    "local devices by platform": lambda: jax.local_devices(backend="tpu")[0].platform,
}


@pytest.mark.parametrize("ask", PLATFORMS.values(), ids=PLATFORMS)
def test_each_query_is_answered_as_on_a_tpu_and_truthfully_afterwards(
    ask: Callable[[], str],
) -> None:
    with chip.answering_everywhere(V6E, pretend=True):
        assert ask() == "tpu"
        heard: list[str] = []
        thread = threading.Thread(target=lambda: heard.append(ask()))
        thread.start()
        thread.join()
        assert heard == ["tpu"]
    try:
        assert ask() == "cpu"
    except RuntimeError as error:
        assert "tpu" in str(error).lower()  # noqa: PT017 - jax has no such backend


@pytest.mark.parametrize("target", targets.BUILTIN, ids=str)
def test_the_kind_and_cores_are_those_of_the_target(target: targets.Target) -> None:
    device = jax.devices()[0]
    with chip.answering_everywhere(target, pretend=True):
        assert jax.devices()[0].device_kind == target.device_kind
        assert device.num_cores == target.num_cores
        assert pltpu.is_tpu_device()
        assert str(pltpu.get_tpu_info().chip_version) in (target.name, "7x")
    assert device.device_kind == "cpu"
    assert not hasattr(device, "num_cores")


def test_without_pretending_devices_answer_as_themselves() -> None:
    with chip.answering_everywhere(V6E):
        assert jax.default_backend() == "cpu"
        assert jax.devices()[0].device_kind == "cpu"
        assert not pltpu.is_tpu_device()
        assert pltpu.get_tpu_info().generation == 6
        assert jax.devices()[0].num_cores == 1  # type: ignore[attr-defined]
        with chip.answering_everywhere(V6E, pretend=True):
            assert jax.default_backend() == "tpu"
        assert jax.default_backend() == "cpu"


def test_devices_stay_devices_and_jax_runs_on_them() -> None:
    before = jax.devices()
    with chip.answering_everywhere(V6E, pretend=True):
        devices = jax.devices()
        assert devices == before
        assert isinstance(devices[0], jax.Device)
        assert {devices[0]: 1}[before[0]] == 1
        x = jax.device_put(jnp.arange(8.0), devices[0])
        mesh = Mesh(np.array(devices[:1]), ("x",))
        spec = PartitionSpec("x")
        y = jax.device_put(x, NamedSharding(mesh, spec))
        doubled = jax.jit(jax.shard_map(lambda a: a * 2, mesh=mesh, in_specs=spec, out_specs=spec))
        assert doubled(y)[3] == 6
        with jax.default_device(devices[0]):
            assert jax.random.normal(jax.random.key(0), (2,)).shape == (2,)


def test_a_mesh_of_simulated_devices_does_not_hide_the_chip() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    with chip.answering_everywhere(V6E), jax.set_mesh(mesh):
        assert pltpu.get_tpu_info().generation == 6


def test_a_jitted_function_is_traced_again() -> None:
    gate = jax.jit(lambda x: x + (1 if jax.default_backend() == "tpu" else 0))
    assert gate(0) == 0
    with chip.answering_everywhere(V6E):
        assert gate(0) == 0
        with chip.answering_everywhere(V6E, pretend=True):
            assert gate(0) == 1
    assert gate(0) == 0
