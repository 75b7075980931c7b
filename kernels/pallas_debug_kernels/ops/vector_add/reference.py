"""The sum of two vectors in plain jax.numpy."""

import jax
import jax.numpy as jnp


def vector_add_reference(x: jax.Array, y: jax.Array, *, block_size: int = 0) -> jax.Array:
    """Compute `x + y`; `block_size` is accepted, and ignored, so that one spec fits both."""
    del block_size
    out: jax.Array = jnp.add(x, y)
    return out
