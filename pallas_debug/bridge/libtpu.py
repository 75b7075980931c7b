"""Driver for libtpu, used only in the worker process: loading libtpu can crash the process.

Imports jaxlib but not jax, which costs a second of CPU per worker and is useless to a compiler.
What jax does before calling libtpu is replicated here: locating the library, the dialects of an
MLIR context, and the compile options. Environment variables that jax sets on a host with a TPU
(`cloud_tpu_init`) are inherited from the parent process, which has imported jax to lower the
kernel.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np  # already imported by jaxlib

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import mlir_ir, xla_client
from pallas_debug.errors import PallasDebugWarning
from pallas_debug.ir.hlo import PlacedCall, labelled_calls
from pallas_debug.model import Memory

_BUILD = re.compile(r"Built on (?P<date>.+?)(?: \(|$)")

_MEMORY_FITTING = 29
"""XLA's number for jax's default of `jax_memory_fitting_level`, O2."""

_DO_NOT_RETRIEVE = -1
"""Profile version that tells XLA not to look for a profile."""


class TopologyError(Exception):
    """A target for which no kernel can be compiled, or not this one."""


@dataclass(frozen=True, kw_only=True)
class ExecutableReport:
    """libtpu's facts about an executable."""

    device_kind: str
    build: str
    memory: Memory | None
    calls: tuple[PlacedCall, ...] = ()


def compile_module(
    module: bytes,
    *,
    topology: str | None,
    num_devices: int,
    options: Mapping[str, str],
    wants_calls: bool = False,
) -> ExecutableReport:
    """Compile a StableHLO module.

    Args:
      module: bytecode.
      topology: name, such as `v5e:2x2`; None for this host's TPU, which requires importing jax.
      num_devices: number of devices that the module is partitioned for; the topology's first ones.
      options: per-compile options by name, as for `jax.stages.Lowered.compile`.
      wants_calls: whether to report the calls of labelled kernels.

    Raises:
      jax.errors.JaxRuntimeError: libtpu rejects the module.
      TopologyError: libtpu rejects the topology, or it has too few devices.
    """
    try:
        devices = _devices(topology)
    except Exception as error:
        raise TopologyError(
            f"libtpu has no topology {topology or 'for this host'}: {error}. Name another target; "
            "`pallas-debug doctor --targets` lists them"
        ) from error
    if len(devices) < num_devices:
        raise TopologyError(
            f"the kernel is partitioned for {num_devices} devices, but {topology or 'this host'} "
            f"has {len(devices)}; use a larger topology as the target"
        )
    devices = devices[:num_devices]
    executable = compiled(module, devices, options)
    return ExecutableReport(
        device_kind=devices[0].device_kind,
        build=build(devices[0].client),
        memory=memory_of(executable),
        calls=_calls(executable) if wants_calls else (),
    )


def compiled(module: bytes, devices: Sequence[Any], options: Mapping[str, str]) -> Any:
    """Compile a StableHLO module for these devices."""
    client = devices[0].client
    with mlir_context():
        parsed = mlir_ir.Module.parse(module)
    # The client of the host's own device compiles and loads; that of a topology only compiles.
    compile_ = getattr(client, "compile", None) or client.compile_and_load
    device_list = xla_client.DeviceList(tuple(devices))
    return compile_(parsed, device_list, compile_options([d.id for d in devices], options))


def compile_options(device_ids: Sequence[int], overrides: Mapping[str, str]) -> Any:
    """XLA's options for a module partitioned for these devices.

    Equal to those of `jax._src.compiler.get_compile_options` with jax's default settings, as far as
    a TPU is concerned: the CUDA directory and XLA's GPU caches are omitted. A kernel on one device
    is not partitioned.

    Args:
      overrides: per-compile options by name.
    """
    options = xla_client.CompileOptions()
    options.num_replicas = 1
    options.num_partitions = len(device_ids)
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([device_ids]))
    options.profile_version = _DO_NOT_RETRIEVE
    build_options = options.executable_build_options
    build_options.use_spmd_partitioning = len(device_ids) > 1
    build_options.use_shardy_partitioner = len(device_ids) > 1
    build_options.memory_fitting_level = _MEMORY_FITTING
    build_options.debug_options.xla_detailed_logging = True
    options.env_option_overrides = list(overrides.items())
    return options


def describe(topology: str | None) -> tuple[str, int, str]:
    """Device kind, number of devices and the compiler's build for a topology."""
    devices = _devices(topology)
    return devices[0].device_kind, len(devices), build(devices[0].client)


def build(client: Any) -> str:
    """Build date of libtpu, as reported by itself."""
    match = _BUILD.search(client.platform_version)
    return match["date"] if match else str(client.platform_version).strip()


@functools.cache
def _devices(topology: str | None) -> tuple[Any, ...]:
    if topology is None:
        import jax  # creates the device's client, with options known only to jax

        return tuple(jax.devices("tpu"))
    _load_libtpu()
    described = xla_client.make_tfrt_tpu_c_api_device_topology(topology)
    return tuple(described._make_compile_only_devices())


def _load_libtpu() -> None:
    """Load and initialise libtpu, once per process."""
    if not xla_client.pjrt_plugin_loaded("tpu"):
        xla_client.load_pjrt_plugin_dynamically("tpu", _library())
    if not xla_client.pjrt_plugin_initialized("tpu"):
        xla_client.initialize_pjrt_plugin("tpu")


def _library() -> str:
    """Path of libtpu: `TPU_LIBRARY_PATH`, else that of the installed package."""
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    if chosen is not None and Path(chosen).is_file():
        return chosen
    if chosen is not None:
        warnings.warn(
            f"TPU_LIBRARY_PATH names no file: {chosen}. The installed libtpu is used instead.",
            PallasDebugWarning,
            stacklevel=1,
        )
    # Importing libtpu reads its package metadata, which takes longer than finding the file.
    package = importlib.util.find_spec("libtpu")
    assert package is not None  # as the pool has checked
    assert package.origin is not None
    library = str(Path(package.origin).with_name("libtpu.so"))
    if not chosen:
        os.environ["TPU_LIBRARY_PATH"] = library  # as importing libtpu does
    return library


class _Context(mlir_ir.Context):  # type: ignore[misc]
    """An MLIR context without the dialects that `ir.Context` loads by default."""

    def __init__(self) -> None:
        super(mlir_ir.Context, self).__init__()


def mlir_context() -> mlir_ir.Context:
    """Create a context with exactly the dialects of jax's contexts."""
    context = _Context()
    jaxcompat.load_dialects(context)
    return context


def _calls(executable: Any) -> tuple[PlacedCall, ...]:
    """Calls of labelled kernels in the optimised program."""
    texts = (module.to_string() for module in executable.hlo_modules())
    return tuple(call for text in texts for call in labelled_calls(text))


def memory_of(executable: Any) -> Memory | None:
    """Bytes that an executable needs."""
    stats = executable.get_compiled_memory_stats()
    if stats is None:
        return None
    return Memory(
        generated_code=stats.generated_code_size_in_bytes,
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
    )
