"""Attention over pages in plain jax.numpy."""

import math

import jax
import jax.numpy as jnp
from jax import lax


def paged_attention_reference(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float | None = None,
) -> jax.Array:
    """Gather the pages of every sequence and compute attention in float32; zero for length 0."""
    batch, num_q_heads, head_dim = q.shape
    num_kv_heads = k_pages.shape[0]
    group = num_q_heads // num_kv_heads
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    k, v = (_gather(pages, page_table) for pages in (k_pages, v_pages))
    grouped = q.astype(jnp.float32).reshape(batch, num_kv_heads, group, head_dim)
    scores = scale * jnp.einsum("bhgd,bhtd->bhgt", grouped, k, precision=lax.Precision.HIGHEST)
    seen = jnp.arange(k.shape[2]) < lengths[:, None, None, None]  # [batch, 1, 1, positions]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)  # NaN for length 0
    weights = jnp.where(seen, weights, 0.0)
    out: jax.Array = jnp.einsum("bhgt,bhtd->bhgd", weights, v, precision=lax.Precision.HIGHEST)
    return out.reshape(q.shape).astype(q.dtype)


def _gather(pages: jax.Array, page_table: jax.Array) -> jax.Array:
    """Return the gathered pages, `[batch, num_kv_heads, pages_per_seq * page_size, head_dim]`."""
    gathered = pages.astype(jnp.float32)[:, page_table]  # [kv heads, batch, pages, size, head_dim]
    num_kv_heads, batch, _, _, head_dim = gathered.shape
    return gathered.swapaxes(0, 1).reshape(batch, num_kv_heads, -1, head_dim)
