"""Reference of `softmax` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def softmax_reference(x: jax.Array, *, block_rows: int = 0) -> jax.Array:
    """Compute `softmax(x)` over the last axis in float32.

    `block_rows` is ignored; it is accepted so that one spec fits both kernel and reference.
    """
    del block_rows
    out: jax.Array = jax.nn.softmax(x.astype(jnp.float32), axis=-1)
    return out.astype(x.dtype)


def _spec(name: str, tag: str, shape: tuple[int, ...], dtype: DTypeLike, **kwargs: object) -> Spec:
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Spec(name=name, tags=(tag,), args=(x,), kwargs=kwargs)


SPECS = (
    _spec("f32", "small", (64, 256), jnp.float32, block_rows=16),
    _spec("bf16", "small", (64, 256), jnp.bfloat16, block_rows=32),
    _spec("vector", "small", (256,), jnp.float32),
    _spec("four_dimensions", "small", (2, 3, 16, 128), jnp.float32, block_rows=16),
    _spec("one_element", "edge", (1, 1), jnp.float32),
    _spec("one_ragged_block", "edge", (5, 37), jnp.bfloat16),
    _spec("ragged_rows", "edge", (70, 200), jnp.float32, block_rows=32),
    _spec("ragged_rows_bf16", "edge", (70, 200), jnp.bfloat16, block_rows=32),
    _spec("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
    _spec("bf16_256_32k", "bench", (256, 32768), jnp.bfloat16, block_rows=16),
)
