"""The backend that programs run on, and prevention of futile searches for a TPU.

With libtpu installed on a machine without a TPU, jax's first query for devices loads libtpu, which
takes half a second and prints a page of warnings before jax falls back to the CPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        _leave_out_cuda()


def _has_gpu() -> bool:
    return any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def _leave_out_cuda() -> None:
    """Let jax find plugins for CUDA that do nothing; without CUDA, its own print a page."""
    for name in _CUDA_PLUGINS if importlib.util.find_spec("jax_plugins") else ():
        spec = importlib.util.find_spec(name)
        if spec is not None and name not in sys.modules:
            plugin: Any = importlib.util.module_from_spec(spec)
            plugin.initialize = lambda: None
            sys.modules[name] = plugin


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
