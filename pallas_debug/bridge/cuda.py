"""Driver for XLA's CUDA plugin, used only in the worker process: LLVM can abort the process.

Imports jaxlib but not jax, as `libtpu.py`. The plugin compiles without a GPU or a driver, given the
description of a GPU; what jax registers with it when it is initialised is registered here, too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pallas_debug.bridge import libtpu
from pallas_debug.bridge.jaxcompat import xla_client
from pallas_debug.chips import gpu_of

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
"""Packages with the plugin's extensions, in jax's order."""

_LIBRARIES = {"jax_cuda13_plugin": "xla_cuda13", "jax_cuda12_plugin": "xla_cuda12"}


def compile_module(
    module: bytes, *, target: str, num_devices: int, options: Mapping[str, str]
) -> libtpu.ExecutableReport:
    """Compile a StableHLO module for GPUs of one kind.

    Args:
      module: bytecode.
      target: name of the GPU.
      options: XLA's options, by name.

    Raises:
      jax.errors.JaxRuntimeError: XLA or a back end of Pallas rejects the module.
    """
    devices = _devices(target, num_devices)
    return libtpu.ExecutableReport(
        device_kind=devices[0].device_kind,
        build=str(devices[0].client.platform_version).strip().partition("\n")[0],
        memory=libtpu.memory_of(libtpu.compiled(module, devices, options)),
    )


@functools.cache
def _devices(target: str, count: int) -> tuple[Any, ...]:
    gpu = gpu_of(target)
    if gpu is None:
        raise libtpu.TopologyError(f"{target} is not in the table of GPUs")
    topology = xla_client.make_c_api_device_topology(
        load(), topology=f"1x1x{count}", target_config=gpu.target_config
    )
    return tuple(topology._make_compile_only_devices())


@functools.cache
def load() -> Any:
    """Load and initialise the plugin, once per process.

    Raises:
      ModuleNotFoundError: it is not installed.
    """
    name = next((name for name in PLUGINS if importlib.util.find_spec(name)), PLUGINS[-1])
    library = importlib.util.find_spec(f"jax_plugins.{_LIBRARIES[name]}")
    if library is None or library.origin is None:
        raise ModuleNotFoundError(f"jax_plugins.{_LIBRARIES[name]} is not installed")
    extension = importlib.import_module(f"{name}.cuda_plugin_extension")
    plugin = xla_client.load_pjrt_plugin_dynamically(
        "cuda", str(Path(library.origin).with_name("xla_cuda_plugin.so"))
    )
    xla_client.initialize_pjrt_plugin("cuda")
    xla_client.register_custom_type_handler(
        "CUDA", functools.partial(extension.register_custom_type, plugin)
    )
    xla_client.register_custom_call_handler(
        "CUDA", functools.partial(extension.register_custom_call_target, plugin)
    )
    for type_, value in extension.ffi_types().items():
        xla_client.register_custom_type(type_, value, platform="CUDA")
    for call, value in extension.ffi_handlers().items():
        xla_client.register_custom_call_target(call, value, platform="CUDA", api_version=1)
    return plugin
