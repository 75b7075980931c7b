"""Attention in plain jax.numpy, with all scores in memory at once."""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from ..._arguments import SegmentIds
    from .block_sizes import FlashBlockSizes


def flash_attention_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None = None,
    segment_ids: "SegmentIds | None" = None,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
    block_sizes: "FlashBlockSizes | None" = None,
) -> jax.Array:
    """Compute attention for `[batch, heads, seq, head_dim]` in float32.

    The block sizes are ignored; they are accepted so that one spec fits both kernel and reference.
    """
    del block_q, block_k, block_sizes
    q_seq, kv_seq, head_dim = q.shape[2], k.shape[2], q.shape[3]
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum(
        "bhqd,bhkd->bhqk", q32, k32, precision=lax.Precision.HIGHEST
    )  # [batch, heads, q_seq, kv_seq]
    if ab is not None:
        scores += ab.astype(jnp.float32)
    visible = jnp.ones((1, 1, q_seq, kv_seq), bool)
    if causal:
        visible = jnp.tril(visible, k=kv_seq - q_seq)
    if segment_ids is not None:
        same = segment_ids.q[:, :, None] == segment_ids.kv[:, None, :]  # [batch, q_seq, kv_seq]
        visible = visible & same[:, None]
    # For a fully masked row, jax.nn.softmax returns NaN; the result here is zero.
    any_visible = jnp.any(visible, axis=-1, keepdims=True)
    weights = jax.nn.softmax(scale * scores, axis=-1, where=visible | ~any_visible)
    weights = jnp.where(visible, weights, 0.0)
    out: jax.Array = jnp.einsum("bhqk,bhkd->bhqd", weights, v32, precision=lax.Precision.HIGHEST)
    return out.astype(q.dtype)
