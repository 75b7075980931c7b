"""Argument sets for `reduction`."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def _spec(name: str, tag: str, shape: tuple[int, int], dtype: DTypeLike, **kwargs: object) -> Spec:
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Spec(name=name, tags=(tag,), args=(x,), kwargs=kwargs)


_BLOCKS = {"block_rows": 32, "block_cols": 128}

SPECS = (
    _spec("f32_sum_rows", "small", (64, 256), jnp.float32, axis=0, **_BLOCKS),
    _spec("f32_sum_cols", "small", (64, 256), jnp.float32, axis=1, **_BLOCKS),
    _spec("f32_max_rows", "small", (64, 256), jnp.float32, kind="max", axis=0, **_BLOCKS),
    _spec("bf16_max_cols", "small", (64, 256), jnp.bfloat16, kind="max", axis=1, **_BLOCKS),
    _spec("bf16_sum_cols", "small", (64, 256), jnp.bfloat16, axis=1, **_BLOCKS),
    _spec("int32_sum_rows", "small", (64, 256), jnp.int32, axis=0, **_BLOCKS),
    _spec("int32_max_cols", "small", (64, 256), jnp.int32, kind="max", axis=1, **_BLOCKS),
    _spec("one_element", "edge", (1, 1), jnp.float32),
    _spec("one_ragged_block", "edge", (5, 37), jnp.bfloat16, axis=0),
    _spec("ragged_sum_rows", "edge", (70, 200), jnp.float32, axis=0, **_BLOCKS),
    _spec("ragged_sum_cols", "edge", (70, 200), jnp.bfloat16, axis=1, **_BLOCKS),
    _spec("ragged_max_rows", "edge", (70, 200), jnp.int32, kind="max", axis=0, **_BLOCKS),
    _spec("ragged_max_cols", "edge", (70, 200), jnp.float32, kind="max", axis=1, **_BLOCKS),
    _spec("f32_8k_sum_rows", "bench", (8192, 4096), jnp.float32, axis=0),
    _spec("bf16_8k_max_cols", "bench", (8192, 4096), jnp.bfloat16, kind="max", axis=1),
)
