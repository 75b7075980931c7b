"""Meshes of devices: that of a kernel which is being lowered, and the number of a device in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge.jaxcompat import jax_core


def mesh_of(context: Any) -> Any | None:
    """Return jax's mesh if the lowering is within `shard_map`."""
    mesh = getattr(context.module_context.axis_context, "mesh", None)
    return None if mesh is None or mesh.empty else mesh


def sizes(mesh: Any | None) -> dict[str, int]:
    """Return the sizes of a mesh's axes, in the order that numbers its devices."""
    return {} if mesh is None else {str(k): int(v) for k, v in dict(mesh.shape).items()}


def automatic_axes(context: Any) -> list[str]:
    """Return the axes of the mesh along which jax partitions arrays, and not `shard_map`."""
    axes, mesh = context.module_context.axis_context, mesh_of(context)
    if mesh is None:
        return []
    return [str(axis) for axis in mesh.axis_names if axis not in axes.manual_axes]


PARTITIONED = (
    "jax partitions its arrays among several devices, which it refuses on a TPU: call it under "
    "`shard_map`, manual in all axes of the mesh"
)
"""Why a kernel is not judged for which `is_partitioned` is true."""


def is_partitioned(context: Any) -> bool:
    """Return whether jax, and not `shard_map`, partitions the kernel's arrays."""
    axes = context.module_context.axis_context
    return bool(automatic_axes(context)) or getattr(axes, "num_devices", 1) not in (1, None)


def device_number(mesh: Mapping[str, int]) -> Any:
    """Return the number of this device in a mesh, as a traced int32."""
    return lax.axis_index(tuple(mesh)).astype(jnp.int32) if mesh else jnp.int32(0)


DEVICE_NUMBER = jax_core.ShapedArray((), np.dtype(np.int32))
"""Type of a device's number."""
