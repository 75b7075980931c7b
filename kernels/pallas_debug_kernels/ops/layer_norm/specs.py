"""Reference of `layer_norm` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ...spec import Spec


def layer_norm_reference(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array,
    *,
    eps: float = 1e-5,
    block_rows: int = 0,
) -> jax.Array:
    """Compute `(x - mean) / sqrt(var + eps) * weight + bias` for each row in float32.

    `block_rows` is ignored; it is accepted so that one spec fits both kernel and reference.
    """
    del block_rows
    wide, weight, bias = (array.astype(jnp.float32) for array in (x, weight, bias))
    mean = jnp.mean(wide, axis=1, keepdims=True)
    variance = jnp.var(wide, axis=1, keepdims=True)
    out: jax.Array = (wide - mean) * lax.rsqrt(variance + eps) * weight + bias
    return out.astype(x.dtype)


def _spec(
    name: str,
    tag: str,
    shape: tuple[int, int],
    dtype: DTypeLike,
    *,
    weight_dtype: DTypeLike | None = None,
    **kwargs: object,
) -> Spec:
    x = jax.ShapeDtypeStruct(shape, dtype)
    vector = jax.ShapeDtypeStruct(shape[1:], weight_dtype or dtype)
    return Spec(name=name, tags=(tag,), args=(x, vector, vector), kwargs=kwargs)


SPECS = (
    _spec("f32", "small", (64, 256), jnp.float32, block_rows=16),
    _spec("bf16", "small", (64, 256), jnp.bfloat16, block_rows=32),
    _spec("bf16_f32_weight", "small", (64, 256), jnp.bfloat16, weight_dtype=jnp.float32),
    _spec("large_eps", "small", (16, 128), jnp.float32, eps=0.5),
    _spec("one_element", "edge", (1, 1), jnp.float32),
    _spec("one_ragged_block", "edge", (5, 37), jnp.bfloat16),
    _spec("ragged_rows", "edge", (70, 200), jnp.float32, block_rows=32),
    _spec("ragged_rows_bf16", "edge", (70, 200), jnp.bfloat16, block_rows=32),
    _spec("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
    _spec("bf16_1k_4k", "bench", (1024, 4096), jnp.bfloat16),
)
