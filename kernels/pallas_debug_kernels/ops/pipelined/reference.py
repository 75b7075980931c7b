"""A copy in plain jax.numpy."""

import jax
import jax.numpy as jnp


def copy_reference(x: jax.Array, *, block_rows: int = 0) -> jax.Array:
    """Copy `x`; `block_rows` is ignored, and accepted so that one spec fits both functions."""
    del block_rows
    out: jax.Array = jnp.copy(x)
    return out
