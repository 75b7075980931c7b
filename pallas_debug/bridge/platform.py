"""The backend that programs run on, and prevention of futile searches for a TPU.

With libtpu installed on a machine without a TPU, jax's first query for devices loads libtpu, which
takes half a second and prints a page of warnings before jax falls back to the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import jax

from pallas_debug.bridge import patches
from pallas_debug.bridge.jaxcompat import hardware_utils, xla_bridge

_CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


def leave_out_absent_tpu() -> None:
    """Keep jax from loading libtpu and CUDA's plugin if their devices are absent.

    Honours `JAX_PLATFORMS`, and leaves backends that are already initialised.
    """
    if jax.config.jax_platforms or xla_bridge.backends_are_initialized():
        return
    chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    if chips == 0:
        patches.install(patches.NO_TPU)
    if not _has_gpu():
        patches.install(patches.NO_GPU)


def _has_gpu() -> bool:
    return any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def discovering_plugins(original: Callable[[], None]) -> Callable[[], None]:
    """Replacement for jax's search of plugins, which does not find those for CUDA."""

    @functools.wraps(original)
    def discover() -> None:
        before = {name: sys.modules.get(name) for name in _CUDA_PLUGINS}
        for name in _CUDA_PLUGINS:
            sys.modules[name] = cast(ModuleType, SimpleNamespace(initialize=lambda: None))
        try:
            original()
        finally:
            for name, module in before.items():
                del sys.modules[name]
                if module is not None:
                    sys.modules[name] = module

    return discover


def default_backend() -> str:
    """Return the name of the backend that programs run on, without initialising it.

    Initialisation would fix what the program may still want to set, such as the number of CPU
    devices.
    """
    if xla_bridge.backends_are_initialized():
        return str(jax.default_backend())
    chosen = jax.config.jax_platforms
    if chosen:
        return str(chosen).partition(",")[0]
    if hardware_utils.num_available_tpu_chips_and_device_id()[0]:
        return "tpu"
    if _has_gpu():
        return str(jax.default_backend())  # only the plugins know whether they support it
    return "cpu"


def has_accelerator() -> bool:
    """Return whether programs run on anything but the CPU."""
    return default_backend() != "cpu"


def has_tpu() -> bool:
    """Return whether programs run on a TPU."""
    return default_backend() == "tpu"


def device_kind() -> str:
    """Return jax's name for its first device. This initialises the backend."""
    leave_out_absent_tpu()
    return str(jax.devices()[0].device_kind)


def without_effect(before: Mapping[str, str]) -> list[str]:
    """Environment variables of jax that were set or changed since, after it was imported.

    `XLA_FLAGS` is none of them: XLA reads it when its backends are initialised.
    """
    return [name for name, text in os.environ.items()
            if name.lower() in jax.config.values and before.get(name) != text]  # fmt: skip


@contextlib.contextmanager
def with_setting(name: str, value: Any) -> Iterator[None]:
    """Change a setting of jax in all threads."""
    before = jax.config.values[name]
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def compiling_quickly() -> contextlib.AbstractContextManager[None]:
    """Compile programs for the CPU without most optimisations.

    For programs that run once: a small one takes longer to compile than to run.
    """
    return with_setting("jax_disable_most_optimizations", True)
