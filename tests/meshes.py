"""Meshes of devices, and of the cores of a TPU, in any version of jax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec


def tensorcore_mesh(num_cores: int = 1) -> Any:
    """A mesh of TensorCores, whose axis is `core`."""
    make = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
    return make(axis_name="core", num_cores=num_cores)


def device_mesh(**axes: int) -> jax.sharding.Mesh:
    devices = jax.devices()[: math.prod(axes.values())]
    types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types, devices=devices)


def sharded(function: Callable[..., Any], **axes: int) -> Callable[..., Any]:
    """A function of arrays whose rows the devices of such a mesh share."""
    spec = PartitionSpec(tuple(axes))
    return jax.shard_map(
        function, mesh=device_mesh(**axes), in_specs=spec, out_specs=spec, check_vma=False
    )
