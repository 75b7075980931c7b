"""Reference of `dma_copy` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def dma_copy_reference(x: jax.Array, *, block_rows: int = 0) -> jax.Array:
    """Copy `x`; `block_rows` is ignored, and accepted so that one spec fits both functions."""
    del block_rows
    out: jax.Array = jnp.copy(x)
    return out


def _spec(name: str, tag: str, shape: tuple[int, int], dtype: DTypeLike, **kwargs: object) -> Spec:
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Spec(name=name, tags=(tag,), args=(x,), kwargs=kwargs)


SPECS = (
    _spec("f32", "small", (64, 256), jnp.float32, block_rows=16),
    _spec("bf16", "small", (96, 256), jnp.bfloat16, block_rows=32),
    _spec("int32", "small", (16, 128), jnp.int32, block_rows=8),
    _spec("one_element", "edge", (1, 1), jnp.float32),
    _spec("one_block", "edge", (5, 37), jnp.bfloat16),
    _spec("ragged_cols", "edge", (48, 200), jnp.float32, block_rows=16),
    _spec("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
)
