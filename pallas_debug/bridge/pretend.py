"""Devices that answer as the emulated chip, for code that queries them before it calls a kernel.

`jax.default_backend()`, and `platform` and `device_kind` of the CPU's devices, answer
as the chip, whoever reads them. jax itself chooses how to compile by the platform of the client,
which is left alone; the few places where it reads those of a device run within `chip.truthful()`.
The devices compare, hash and work in `jax.device_put`, `Mesh` and `jax.jit` as before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jax.sharding import get_abstract_mesh

from pallas_debug.bridge import chip

_PLATFORM, _CPU = "tpu", "cpu"


def answering_backend(original: Callable[[], str]) -> Callable[[], str]:
    """Replacement for `jax.default_backend`, which jax itself calls by another name."""

    @functools.wraps(original)
    def answer() -> str:
        return original() if chip.pretended() is None else _PLATFORM

    return answer


def answering_platform(original: property) -> property:
    """Replacement for a device's `platform`."""

    def get(device: Any) -> str:
        found = str(original.__get__(device))
        return found if found != _CPU or chip.pretended() is None else _PLATFORM

    return property(get, doc=original.__doc__)


def answering_kind(original: property) -> property:
    """Replacement for a device's `device_kind`."""

    def get(device: Any) -> str:
        found, target = str(original.__get__(device)), chip.pretended()
        if found != _CPU or target is None or target.device_kind is None:
            return found
        return chip.note(target.device_kind)

    return property(get, doc=original.__doc__)


def answering_cores(original: Any) -> property:
    """Replacement for a device's `num_cores`, which devices other than TPUs do not have.

    It does not depend on pretending: `pltpu.create_tensorcore_mesh` reads it.
    """

    def get(device: Any) -> int:
        target = chip.answered()
        if target is not None and device.client.platform == _CPU:
            return chip.note(target.num_cores)
        raise AttributeError(f"{type(device).__name__!r} object has no attribute 'num_cores'")

    return property(get)


def counting_cores(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for what makes a mesh of TensorCores, by default of as many as the chip has.

    Under `shard_map` jax asks the mesh's abstract device, which has no number of cores for a CPU.
    Abstract devices are part of jax's cache keys, so they are left as they are.
    """
    parameters = inspect.signature(original).parameters

    @functools.wraps(original)
    def make(*args: Any, **options: Any) -> Any:
        target = chip.answered()
        if target is not None and "num_cores" in parameters:
            given = dict(zip(parameters, args, strict=False)) | options
            device = get_abstract_mesh().abstract_device
            is_open = given.get("devices") is None and given.get("num_cores") is None
            if is_open and device is not None and device.num_cores is None:
                options["num_cores"] = chip.note(target.num_cores)
        return original(*args, **options)

    return make


def answering_place(original: Any, name: str) -> property:
    """Replacement for a device's `coords` and `core_on_chip`, which only TPUs have.

    The simulated devices are chips with a core each, in a mesh two chips wide, in order of `id`.
    """

    def get(device: Any) -> Any:
        if chip.pretended() is not None and device.client.platform == _CPU:
            return 0 if name == "core_on_chip" else (device.id % 2, device.id // 2, 0)
        raise AttributeError(f"{type(device).__name__!r} object has no attribute {name!r}")

    return property(get)


def finding_backends(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for jax's search of a backend: `jax.devices("tpu")` are the simulated ones."""

    @functools.wraps(original)
    def find(platform: Any = None) -> Any:
        if platform == _PLATFORM and chip.pretended() is not None:
            return original(None)
        return original(platform)

    return find


def truthful(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for a function of jax that reads the attributes of devices for its own use."""

    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        with chip.truthful():
            return original(*args, **options)

    return call


def truthful_property(original: Any) -> property:
    """Replacement for a property of jax that reads the attributes of devices for its own use."""

    def get(owner: Any) -> Any:
        with chip.truthful():
            return original.__get__(owner)

    return property(get, doc=original.__doc__)
