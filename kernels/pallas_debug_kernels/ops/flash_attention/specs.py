"""Argument sets for `flash_attention`."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ...spec import Spec


def _spec(
    name: str,
    tag: str,
    shape: tuple[int, int, int, int],
    dtype: DTypeLike,
    *,
    kv_seq: int | None = None,
    **kwargs: object,
) -> Spec:
    batch, heads, q_seq, head_dim = shape
    q = jax.ShapeDtypeStruct(shape, dtype)
    kv = jax.ShapeDtypeStruct((batch, heads, kv_seq or q_seq, head_dim), dtype)
    return Spec(name=name, tags=(tag,), args=(q, kv, kv), kwargs=kwargs)


_BLOCKS = {"block_q": 64, "block_k": 128}
_CAUSAL = {"causal": True, **_BLOCKS}

SPECS = (
    _spec("f32", "small", (1, 2, 256, 64), jnp.float32, **_BLOCKS),
    _spec("f32_causal", "small", (1, 2, 256, 64), jnp.float32, **_CAUSAL),
    _spec("bf16", "small", (2, 1, 256, 128), jnp.bfloat16, **_BLOCKS),
    _spec("bf16_causal", "small", (2, 1, 256, 128), jnp.bfloat16, **_CAUSAL),
    _spec("sm_scale", "small", (1, 1, 128, 64), jnp.float32, sm_scale=0.5, **_BLOCKS),
    _spec("one_query_one_key", "edge", (1, 1, 1, 64), jnp.float32, causal=True),
    _spec("one_ragged_block", "edge", (1, 1, 37, 64), jnp.bfloat16, causal=True),
    _spec("ragged", "edge", (1, 1, 200, 64), jnp.float32, kv_seq=300, **_BLOCKS),
    _spec("ragged_causal", "edge", (1, 1, 200, 80), jnp.bfloat16, kv_seq=300, **_CAUSAL),
    _spec("decode", "edge", (2, 2, 1, 64), jnp.bfloat16, kv_seq=300, **_CAUSAL),
    _spec("fully_masked_rows", "edge", (1, 1, 256, 64), jnp.float32, kv_seq=100, **_CAUSAL),
    _spec("fully_masked_rows_bf16", "edge", (1, 1, 300, 64), jnp.bfloat16, kv_seq=140, **_CAUSAL),
    _spec("bf16_4k", "bench", (4, 8, 4096, 128), jnp.bfloat16),
    _spec("bf16_4k_causal", "bench", (4, 8, 4096, 128), jnp.bfloat16, causal=True),
    _spec("f32_2k_causal", "bench", (2, 8, 2048, 128), jnp.float32, causal=True),
)
