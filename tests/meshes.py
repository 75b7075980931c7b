"""Meshes of the cores of a TPU, in any version of jax."""

from __future__ import annotations

from typing import Any

from jax.experimental.pallas import tpu as pltpu


def tensorcore_mesh(num_cores: int = 1) -> Any:
    """A mesh of TensorCores, whose axis is `core`."""
    make = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
    return make(axis_name="core", num_cores=num_cores)
