"""The backend that programs run on, and prevention of futile searches for a TPU.

With libtpu installed on a machine without a TPU, jax's first query for devices loads libtpu, which
takes half a second and prints a page of warnings before jax falls back to the CPU.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import jax
from jax._src import hardware_utils, xla_bridge

from pallas_debug.bridge import patches


def leave_out_absent_tpu() -> None:
    """Keep jax from loading libtpu if there is no TPU and none was requested.

    Honours `JAX_PLATFORMS`, and leaves backends that are already initialised.
    """
    if jax.config.jax_platforms or xla_bridge.backends_are_initialized():
        return
    chips, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    if chips == 0:
        patches.install(patches.NO_TPU)


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
    if any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd")):
        return str(jax.default_backend())  # only the plugins know whether they support it
    return "cpu"


def has_accelerator() -> bool:
    """Whether programs run on anything but the CPU."""
    return default_backend() != "cpu"


def has_tpu() -> bool:
    """Whether programs run on a TPU."""
    return default_backend() == "tpu"


def device_kind() -> str:
    """Return jax's name for its first device. This initialises the backend."""
    leave_out_absent_tpu()
    return str(jax.devices()[0].device_kind)


def compiling_quickly() -> contextlib.AbstractContextManager[None]:
    """Compile programs for the CPU without most optimisations.

    For programs that run once: a small one takes longer to compile than to run.
    """
    return patches.installed(patches.QUICK)
