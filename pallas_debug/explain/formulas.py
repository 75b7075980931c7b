"""Replacements of primitives that jax does not lower in kernels."""

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
"""Functions of numbers, by the name of the primitive."""

INSTEAD = {
    **{name: f"write {formula}" for name, formula in FORMULAS.items()},
    "rev": "multiply by a reversed identity matrix, or let the index map count the blocks down",
    "cumsum": "multiply by a triangular matrix of ones: x @ jnp.triu(jnp.ones((n, n)))",
    "cumprod": "exponentiate a cumulative sum of logarithms, or loop over the rows",
    "dynamic_slice": "index the ref: ref[pl.ds(start, size), :]",
    "dynamic_update_slice": "store to the ref: ref[pl.ds(start, size), :] = value",
    "sort": "sort before the call; for the few largest elements, use jnp.max and a mask in a loop",
    "scatter": "multiply by a one-hot matrix, or store row by row with ref[pl.ds(i, 1), :]",
    "scatter-add": "multiply by a one-hot matrix, or add row by row with ref[pl.ds(i, 1), :]",
    "cos": "compute the sine and cosine of the operand before the call",
}
"""Replacement of each primitive, by its name."""
