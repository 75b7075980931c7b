"""The product of two matrices in plain jax.numpy."""

import jax
import jax.numpy as jnp
from jax import lax


def matmul_reference(
    x: jax.Array,
    y: jax.Array,
    *,
    activation: str | None = None,
    block_m: int = 0,
    block_n: int = 0,
    block_k: int = 0,
) -> jax.Array:
    """Compute `activation(x @ y)` for `[m, k]` and `[k, n]` in float32 (int8: int32).

    The block sizes are ignored; they are accepted so that one spec fits both kernel and reference.
    """
    del block_m, block_n, block_k
    is_integer = x.dtype == jnp.int8
    acc_dtype = jnp.int32 if is_integer else jnp.float32
    product = jnp.matmul(
        x.astype(acc_dtype), y.astype(acc_dtype), precision=lax.Precision.HIGHEST
    )  # [m, n]
    return _activate(product, activation).astype(acc_dtype if is_integer else x.dtype)


def _activate(z: jax.Array, activation: str | None) -> jax.Array:
    match activation:
        case "relu":
            z = jax.nn.relu(z)
        case "silu":
            z = jax.nn.silu(z)
        case "gelu":
            z = jax.nn.gelu(z, approximate=True)
    return z
