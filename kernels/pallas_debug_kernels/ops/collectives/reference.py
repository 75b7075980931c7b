"""The collective without a ring, in plain jax.numpy."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh


def all_gather_reference(
    x: jax.Array, *, mesh: Mesh | AbstractMesh | None = None, axis_name: str = "x"
) -> jax.Array:
    """Return a copy of `x`: only its placement changes."""
    del mesh, axis_name
    out: jax.Array = jnp.copy(x)
    return out
