"""Reference of `vector_add` in plain jax.numpy, and its argument sets."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def vector_add_reference(x: jax.Array, y: jax.Array, *, block_size: int = 0) -> jax.Array:
    """Compute `x + y`; `block_size` is accepted, and ignored, so that one spec fits both."""
    del block_size
    out: jax.Array = jnp.add(x, y)
    return out


def _spec(name: str, tag: str, n: int, dtype: DTypeLike, **kwargs: object) -> Spec:
    x = jax.ShapeDtypeStruct((n,), dtype)
    return Spec(name=name, tags=(tag,), args=(x, x), kwargs=kwargs)


SPECS = (
    _spec("f32", "small", 4096, jnp.float32, block_size=1024),
    _spec("bf16", "small", 4096, jnp.bfloat16, block_size=2048),
    _spec("int32", "small", 2048, jnp.int32, block_size=1024),
    _spec("one_element", "edge", 1, jnp.float32),
    _spec("one_ragged_block", "edge", 1000, jnp.float32),
    _spec("ragged_last_block", "edge", 2500, jnp.float32, block_size=1024),
    _spec("ragged_last_block_bf16", "edge", 2049, jnp.bfloat16, block_size=2048),
    _spec("f32_4m", "bench", 1 << 22, jnp.float32),
    _spec("bf16_4m", "bench", 1 << 22, jnp.bfloat16),
)
