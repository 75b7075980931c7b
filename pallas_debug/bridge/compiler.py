"""Drives libtpu. Used in the worker process alone: loading libtpu can end the process.

Imports the least of jax that finds the compiler: no backend is initialised but the one asked for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

from pallas_debug.model import Memory

_BUILD = re.compile(r"Built on (?P<date>.+?)(?: \(|$)")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What libtpu says of an executable."""

    device_kind: str
    build: str
    memory: Memory | None


def compile_module(
    module: bytes, *, topology: str | None, num_devices: int, options: Mapping[str, str]
) -> Compiled:
    """Compile a StableHLO module.

    Args:
      module: bytecode.
      topology: its name, `v5e:2x2`; None for the TPU of this host.
      num_devices: that the module is partitioned for; the topology's first ones are taken.
      options: per-compile options by name, as `jax.stages.Lowered.compile` takes them.

    Raises:
      jax.errors.JaxRuntimeError: libtpu refuses the topology or the module.
      ValueError: the topology has fewer devices.
    """
    devices = _devices(topology)
    if len(devices) < num_devices:
        raise ValueError(
            f"the kernel is partitioned for {num_devices} devices and {topology or 'this host'} "
            f"has {len(devices)}; name a larger topology as the target"
        )
    devices = devices[:num_devices]
    client: Any = devices[0].client
    compile_options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=num_devices,
        device_assignment=np.array([[d.id for d in devices]]),
        env_options_overrides=dict(options),
        backend=client,
    )
    compile_options.executable_build_options.use_spmd_partitioning = num_devices > 1
    compile_options.executable_build_options.use_shardy_partitioner = num_devices > 1
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
    device_list = xla_client.DeviceList(devices)
    # A client of the host's own device compiles and loads; that of a topology can only compile.
    compile_ = getattr(client, "compile", None) or client.compile_and_load
    executable = compile_(parsed, device_list, compile_options)
    return Compiled(
        device_kind=devices[0].device_kind,
        build=build(client),
        memory=_memory(executable),
    )


def describe(topology: str | None) -> tuple[str, int, str]:
    """Device kind, number of devices and the compiler's build for a topology."""
    devices = _devices(topology)
    return devices[0].device_kind, len(devices), build(devices[0].client)


def build(client: Any) -> str:
    """When libtpu was built, as it says itself."""
    match = _BUILD.search(client.platform_version)
    return match["date"] if match else str(client.platform_version).strip()


@functools.cache
def _devices(topology: str | None) -> tuple[Any, ...]:
    if topology is None:
        return tuple(jax.devices("tpu"))
    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return tuple(described.devices)


def _memory(executable: Any) -> Memory | None:
    stats = executable.get_compiled_memory_stats()
    if stats is None:
        return None
    return Memory(
        generated_code=stats.generated_code_size_in_bytes,
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
    )
