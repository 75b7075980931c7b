"""Argument sets for `flash_attention`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..._arguments import SegmentIds
from ...spec import Spec
from .block_sizes import FlashBlockSizes


def _spec(
    name: str,
    tag: str,
    shape: tuple[int, int, int, int],
    dtype: DTypeLike,
    *,
    kv_seq: int | None = None,
    bias: bool = False,
    **kwargs: object,
) -> Spec:
    batch, heads, q_seq, head_dim = shape
    kv_seq = kv_seq or q_seq
    q = jax.ShapeDtypeStruct(shape, dtype)
    kv = jax.ShapeDtypeStruct((batch, heads, kv_seq, head_dim), dtype)
    ab = jax.ShapeDtypeStruct((batch, heads, q_seq, kv_seq), dtype)
    return Spec(name=name, tags=(tag,), args=(q, kv, kv, *[ab] * bias), kwargs=kwargs)


def _segments(batch: int, q_seq: int, kv_seq: int, *, count: int = 3) -> SegmentIds:
    """Return `count` segments of equal length, the first without keys, so its queries see none."""
    q, kv = (np.arange(seq, dtype=np.int32) * count // seq for seq in (q_seq, kv_seq))
    ids = SegmentIds(q=q, kv=np.maximum(kv, 1))  # type: ignore[arg-type]
    return SegmentIds(*(np.broadcast_to(x, (batch, x.size)) for x in ids))  # type: ignore[arg-type]


_BLOCKS: dict[str, Any] = {"block_q": 64, "block_k": 128}
_CAUSAL: dict[str, Any] = {"causal": True, **_BLOCKS}
_MAJOR_AND_MINOR = FlashBlockSizes(
    block_q=64,
    block_k_major=256,
    block_k=128,
    block_b=2,
    block_q_major_dkv=256,
    block_k_major_dkv=256,
    block_k_dkv=128,
    block_q_dkv=128,
    block_k_major_dq=256,
    block_k_dq=128,
    block_q_dq=64,
)

SPECS = (
    _spec("f32", "small", (1, 2, 256, 64), jnp.float32, **_BLOCKS),
    _spec("bf16_causal", "small", (2, 1, 256, 128), jnp.bfloat16, **_CAUSAL),
    _spec("bias_causal", "small", (1, 1, 256, 64), jnp.float32, bias=True, sm_scale=0.5, **_CAUSAL),
    _spec(
        "segments",
        "small",
        (2, 1, 256, 64),
        jnp.float32,
        segment_ids=_segments(2, 256, 256),
        **_BLOCKS,
    ),
    _spec(
        "major_and_minor_blocks",
        "small",
        (2, 1, 512, 64),
        jnp.float32,
        causal=True,
        block_sizes=_MAJOR_AND_MINOR,
    ),
    _spec("one_query_two_keys", "edge", (1, 1, 1, 64), jnp.float32, kv_seq=2, causal=True),
    _spec("one_ragged_block", "edge", (1, 1, 37, 64), jnp.bfloat16, causal=True),
    _spec("ragged", "edge", (1, 1, 200, 64), jnp.float32, kv_seq=300, **_BLOCKS),
    _spec("ragged_causal", "edge", (1, 1, 200, 80), jnp.bfloat16, kv_seq=300, **_CAUSAL),
    _spec(
        "ragged_everything",
        "edge",
        (2, 1, 200, 192),
        jnp.float32,
        kv_seq=300,
        bias=True,
        segment_ids=_segments(2, 200, 300),
        **_CAUSAL,
    ),
    _spec("decode", "edge", (2, 2, 1, 64), jnp.bfloat16, kv_seq=300, **_CAUSAL),
    _spec("fully_masked_rows", "edge", (1, 1, 256, 64), jnp.float32, kv_seq=100, **_CAUSAL),
    _spec("fully_masked_rows_bf16", "edge", (1, 1, 300, 64), jnp.bfloat16, kv_seq=140, **_CAUSAL),
    _spec("bf16_4k", "bench", (1, 2, 4096, 128), jnp.bfloat16),
    _spec("bf16_4k_causal", "bench", (1, 2, 4096, 128), jnp.bfloat16, causal=True),
    _spec("f32_2k_causal", "bench", (1, 2, 2048, 128), jnp.float32, causal=True),
)
