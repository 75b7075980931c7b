"""The sum of two vectors in plain jax.numpy."""

import jax
import jax.numpy as jnp


def vector_add_reference(x: jax.Array, y: jax.Array, *, block_size: int = 0) -> jax.Array:
    """`x + y` for two `[n]`; `block_size` is taken, and ignored, so that one spec calls both."""
    del block_size
    out: jax.Array = jnp.add(x, y)
    return out
