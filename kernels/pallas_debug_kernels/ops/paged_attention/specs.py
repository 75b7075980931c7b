"""Argument sets for `paged_attention`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ...spec import Spec


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
