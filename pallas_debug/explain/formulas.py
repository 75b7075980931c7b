"""Formulas for functions of numbers that jax does not lower in kernels."""

from __future__ import annotations

FORMULAS = {
    "acos": "jnp.arctan2(jnp.sqrt(1 - x * x), x)",
    "acosh": "jnp.log(x + jnp.sqrt(x * x - 1))",
    "asin": "jnp.arctan2(x, jnp.sqrt(1 - x * x))",
    "asinh": "jnp.sign(x) * jnp.log(jnp.abs(x) + jnp.sqrt(x * x + 1))",
    "atan": "jnp.arctan2(x, jnp.ones_like(x))",
    "cbrt": "jnp.sign(x) * jnp.abs(x) ** (1 / 3)",
    "cosh": "(jnp.exp(x) + jnp.exp(-x)) / 2",
    "erfc": "1 - jax.lax.erf(x)",
    "expm1": "jnp.exp(x) - 1",
    "sinh": "(jnp.exp(x) - jnp.exp(-x)) / 2",
}
"""What to write instead, by the name of the primitive."""
