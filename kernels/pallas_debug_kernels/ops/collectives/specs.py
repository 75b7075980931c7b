"""Reference of `all_gather` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.typing import DTypeLike

from ...spec import Spec


def all_gather_reference(
    x: jax.Array, *, mesh: Mesh | AbstractMesh | None = None, axis_name: str = "x"
) -> jax.Array:
    """Return a copy of `x`: only its placement changes."""
    del mesh, axis_name
    out: jax.Array = jnp.copy(x)
    return out


def _spec(
    name: str, tag: str, shape: tuple[int, int], dtype: DTypeLike, *, num_devices: int = 4
) -> Spec:
    mesh = AbstractMesh((num_devices,), ("x",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Spec(name=name, tags=(tag,), args=(x,), kwargs={"mesh": mesh})


SPECS = (
    _spec("f32", "small", (32, 128), jnp.float32),
    _spec("bf16", "small", (64, 256), jnp.bfloat16),
    _spec("ragged", "edge", (20, 200), jnp.int32),
    _spec("two_devices", "edge", (16, 128), jnp.float32, num_devices=2),
    _spec("one_device", "edge", (8, 128), jnp.float32, num_devices=1),
    _spec("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
)
