"""Code common to both ways of moving the blocks."""

import jax
import jax.numpy as jnp
from jax import lax


def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
    """Compute `x @ y` in float32.

    By default the MXU rounds float32 to bfloat16; HIGHEST keeps full precision.
    """
    exact = x.dtype == jnp.float32
    product: jax.Array = jnp.dot(
        x,
        y,
        precision=lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )
    return product
