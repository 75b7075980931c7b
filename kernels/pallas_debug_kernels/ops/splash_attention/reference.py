"""Block-sparse attention in plain jax.numpy, with all scores and the whole mask in memory."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._arguments import SegmentIds
from .api import AnyMask
from .block_sizes import SplashBlockSizes
from .masks import Mask, MultiHeadMask
from .tile import MASK_VALUE


def splash_attention_reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: AnyMask,
    segment_ids: SegmentIds | None = None,
    sm_scale: float = 1.0,
    attn_logits_soft_cap: float | None = None,
    block_sizes: SplashBlockSizes | None = None,
) -> jax.Array:
    """Compute attention for `[heads, seq, head_dim]` in float32.

    The block sizes are ignored; they are accepted so that one spec fits both kernel and reference.
    """
    del block_sizes
    group = q.shape[0] // k.shape[0]
    q32 = q.astype(jnp.float32)
    k32, v32 = (jnp.repeat(x.astype(jnp.float32), group, axis=0) for x in (k, v))
    scores = sm_scale * jnp.einsum(
        "hqd,hkd->hqk", q32, k32, precision=lax.Precision.HIGHEST
    )  # [num_q_heads, q_seq, kv_seq]
    if attn_logits_soft_cap is not None:
        scores = attn_logits_soft_cap * jnp.tanh(scores / attn_logits_soft_cap)
    visible = jnp.broadcast_to(_dense(mask), scores.shape)
    if segment_ids is not None:
        q_ids, kv_ids = (jnp.asarray(ids) for ids in segment_ids)
        visible = visible & (q_ids[:, None] == kv_ids[None, :])
    # A fully masked row is zero; its softmax would be NaN.
    scores = jnp.where(visible, scores, MASK_VALUE)
    weights = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0.0)
    out: jax.Array = jnp.einsum("hqk,hkd->hqd", weights, v32, precision=lax.Precision.HIGHEST)
    return out.astype(q.dtype)


def _dense(mask: AnyMask) -> np.ndarray | jax.Array:
    """Return the mask as one array."""
    everything = (slice(None), slice(None))
    if isinstance(mask, MultiHeadMask):
        return np.stack([m[everything] for m in mask.masks])
    return mask[everything] if isinstance(mask, Mask) else mask
