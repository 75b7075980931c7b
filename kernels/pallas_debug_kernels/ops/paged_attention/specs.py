"""Reference of `paged_attention` in plain jax.numpy, and its argument sets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ...spec import Spec


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


def _spec(
    name: str,
    tag: str,
    dtype: DTypeLike,
    lengths: tuple[int, ...],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    page_size: int = 16,
    pages_per_seq: int = 4,
    **kwargs: object,
) -> Spec:
    """Return a spec with `heads` (query, key-value), and pages in random order."""
    batch = len(lengths)
    num_q_heads, num_kv_heads = heads
    num_pages = batch * pages_per_seq
    shuffled = np.random.default_rng(0).permutation(num_pages)
    pages = jax.ShapeDtypeStruct((num_kv_heads, num_pages, page_size, head_dim), dtype)
    return Spec(
        name=name,
        tags=(tag,),
        args=(
            jax.ShapeDtypeStruct((batch, num_q_heads, head_dim), dtype),
            pages,
            pages,
            jax.ShapeDtypeStruct((batch,), jnp.int32),
            jax.ShapeDtypeStruct((batch, pages_per_seq), jnp.int32),
        ),
        values={3: np.array(lengths), 4: shuffled.reshape(batch, pages_per_seq)},
        kwargs=kwargs,
    )


SPECS = (
    _spec("f32_gqa", "small", jnp.float32, (50, 23)),
    _spec("bf16_gqa", "small", jnp.bfloat16, (50, 23), head_dim=128),
    _spec("f32_mha", "small", jnp.float32, (37,), heads=(2, 2)),
    _spec("bf16_mqa", "small", jnp.bfloat16, (37, 64), heads=(8, 1)),
    _spec("sm_scale", "small", jnp.float32, (20,), sm_scale=0.5),
    _spec("zero_lengths", "edge", jnp.float32, (0, 40, 0)),
    _spec("full_and_single", "edge", jnp.float32, (64, 1)),
    _spec("ends_on_pages", "edge", jnp.bfloat16, (16, 32, 48, 64)),
    _spec("one_page", "edge", jnp.float32, (5, 8), page_size=8, pages_per_seq=1),
    _spec("head_dim_80", "edge", jnp.bfloat16, (33, 17), heads=(6, 2), head_dim=80),
    _spec(
        "bf16_8x4k",
        "bench",
        jnp.bfloat16,
        tuple(range(512, 4097, 512)),
        heads=(8, 2),
        head_dim=128,
        page_size=128,
        pages_per_seq=32,
    ),
)
