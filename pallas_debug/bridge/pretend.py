"""Devices that answer as the emulated chip, for code that queries them before it calls a kernel.

The answer depends on the caller. jax itself gets the real values, and so keeps compiling for the
CPU. Other code gets the chip from `jax.default_backend()` (through the platform of its client) and
from a device's `platform` and `device_kind`. The devices stay what they are: they compare, hash and
work in `jax.device_put`, `Mesh` and `jax.jit` as before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from pallas_debug.bridge import chip
from pallas_debug.bridge.jaxcompat import xla_bridge
from pallas_debug.model import Target

_PLATFORMS = {"tpu": "tpu", "cuda": "gpu"}
_OURS = ("jax", "jaxlib", "pallas_debug", "pallas_debug_pytest")
"""Packages that get the real values."""

_OTHERS = (
    "jax._src.test_util",
    "jax._src.internal_test_util",
    "jax._src.pallas.pallas_test_util",
    "jax.experimental.pallas.ops",
)
"""Modules of jax that query devices like user code: test utilities, bundled kernels."""

_default_backend = xla_bridge.default_backend.__code__


def answering_platform(original: property) -> property:
    """Replacement for the property `platform` of a device or client."""
    return _answering(original, original, lambda target: _PLATFORMS[target.platform])


def answering_kind(original: property) -> property:
    """Replacement for a device's `device_kind`."""
    return _answering(original, _platform_of(), lambda target: chip.note(target.device_kind))


def answering_cores(original: Any, name: str, platforms: str) -> property:
    """Replacement for a device's number of cores, which the CPU does not have.

    All callers get this answer, including jax: `pltpu.create_tensorcore_mesh` reads it.

    Args:
      name: name of the property.
      platforms: platforms of chips that have it.
    """

    def get(device: Any) -> int:
        target = chip.answered()
        is_cpu = _platform_of().__get__(device) == "cpu"
        if target is not None and target.platform in platforms.split() and is_cpu:
            return chip.note(target.num_cores)
        raise AttributeError(f"{type(device).__name__!r} object has no attribute {name!r}")

    return property(get)


def finding_backends(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for jax's search of a backend: `jax.devices("tpu")` are the simulated ones."""

    @functools.wraps(original)
    def find(platform: Any = None) -> Any:
        target = chip.pretended()
        if target is not None and platform == _PLATFORMS[target.platform]:
            return original(None)
        return original(platform)

    return find


def _platform_of() -> property:
    """jax's own property `platform` of a device, whether it is replaced at the moment or not."""
    found: property = vars(xla_bridge.xla_client.Device)["platform"]
    return found.original if isinstance(found, _Answer) else found


class _Answer(property):
    original: property


def _answering(original: property, platform: property, answer: Callable[[Target], Any]) -> property:
    def get(device: Any) -> Any:
        target = chip.pretended()
        if target is None or _is_jax(sys._getframe(1)) or platform.__get__(device) != "cpu":
            return original.__get__(device)
        found = answer(target)
        return original.__get__(device) if found is None else found

    made = _Answer(get, doc=original.__doc__)
    made.original = original
    return made


def _is_jax(frame: FrameType | None) -> bool:
    """Return whether the query comes from jax or from us, rather than from the user's code."""
    while frame is not None and frame.f_code is _default_backend:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return _is_in(name, _OURS) and not _is_in(name, _OTHERS)


def _is_in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
