"""Argument sets for the pipelined copies and matrix products."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def _copy(name: str, tag: str, shape: tuple[int, int], dtype: DTypeLike, **kwargs: object) -> Spec:
    x = jax.ShapeDtypeStruct(shape, dtype)
    return Spec(name=name, tags=(tag,), args=(x,), kwargs=kwargs)


def _matmul(
    name: str, tag: str, mnk: tuple[int, int, int], dtype: DTypeLike, **kwargs: object
) -> Spec:
    m, n, k = mnk
    x = jax.ShapeDtypeStruct((m, k), dtype)
    y = jax.ShapeDtypeStruct((k, n), dtype)
    return Spec(name=name, tags=(tag,), args=(x, y), kwargs=kwargs)


_BLOCKS = {"block_m": 32, "block_n": 128, "block_k": 128}

COPY_SPECS = (
    _copy("f32", "small", (64, 256), jnp.float32, block_rows=16),
    _copy("bf16", "small", (96, 256), jnp.bfloat16, block_rows=32),
    _copy("int32", "small", (16, 128), jnp.int32, block_rows=8),
    _copy("one_element", "edge", (1, 1), jnp.float32),
    _copy("one_block", "edge", (5, 37), jnp.bfloat16),
    _copy("ragged_cols", "edge", (48, 200), jnp.float32, block_rows=16),
    _copy("f32_8k_1k", "bench", (8192, 1024), jnp.float32),
)

MATMUL_SPECS = (
    _matmul("f32", "small", (64, 256, 384), jnp.float32, **_BLOCKS),
    _matmul("bf16", "small", (64, 256, 384), jnp.bfloat16, **_BLOCKS),
    _matmul("one_element", "edge", (1, 1, 1), jnp.float32),
    _matmul("one_block", "edge", (5, 7, 3), jnp.bfloat16),
    _matmul("ragged_m", "edge", (37, 128, 256), jnp.float32, block_n=128, block_k=128),
    _matmul("bf16_4096", "bench", (4096, 4096, 4096), jnp.bfloat16),
)
