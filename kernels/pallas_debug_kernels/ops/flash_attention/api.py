"""What a user calls for attention."""

import math
from numbers import Real

import jax

from ..._arguments import LANES, check_dtype, check_ndim, check_same_dtype, checked_block, sublanes
from .kernel import launch

DTYPES = ("float32", "bfloat16")


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    block_q: int = 512,
    block_k: int = 512,
) -> jax.Array:
    """Attention, `softmax(sm_scale * q @ k.T) @ v` for each batch and head. Forward only.

    The softmax and both sums are float32; float32 inputs are multiplied at full float32 precision.
    No sequence need be a multiple of its block.

    Args:
      q: float32 or bfloat16 `[batch, heads, q_seq, head_dim]`.
      k: `[batch, heads, kv_seq, head_dim]`, with the dtype of `q`.
      v: `[batch, heads, kv_seq, head_dim]`, with the dtype of `q`.
      causal: query i sees the keys up to i + kv_seq - q_seq, so that the last query sees all keys.
        A query that sees none (q_seq > kv_seq) gives zeros.
      sm_scale: factor of the scores; None is `1 / sqrt(head_dim)`.
      block_q: queries per grid step: a multiple of 8 (bfloat16: 16), or at least `q_seq`.
      block_k: keys per grid step: a multiple of 128, or at least `kv_seq`.

    Returns:
      `[batch, heads, q_seq, head_dim]`, with the dtype of `q`.

    Raises:
      ValueError: for a shape, dtype, scale or block size other than these.
    """
    _check_arrays(q, k, v)
    q_seq, kv_seq, head_dim = q.shape[2], k.shape[2], q.shape[3]
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"flash_attention: sm_scale is {scale!r}. It must be a finite number.")
    out: jax.Array = launch(
        q,
        k,
        v,
        causal=bool(causal),
        sm_scale=float(scale),
        block_q=checked_block(
            "flash_attention",
            "block_q",
            block_q,
            multiple=sublanes(q.dtype),
            dim="q_seq",
            size=q_seq,
        ),
        block_k=checked_block(
            "flash_attention", "block_k", block_k, multiple=LANES, dim="kv_seq", size=kv_seq
        ),
    )
    return out


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    check_ndim("flash_attention", "q", q, ("batch", "heads", "q_seq", "head_dim"))
    check_ndim("flash_attention", "k", k, ("batch", "heads", "kv_seq", "head_dim"))
    check_ndim("flash_attention", "v", v, ("batch", "heads", "kv_seq", "head_dim"))
    batch, heads, _, head_dim = q.shape
    if k.shape != (batch, heads, k.shape[2], head_dim):
        raise ValueError(
            f"flash_attention: k has shape {k.shape}. "
            f"It must be ({batch}, {heads}, kv_seq, {head_dim}), to fit q."
        )
    if v.shape != k.shape:
        raise ValueError(
            f"flash_attention: v has shape {v.shape}. It must be {k.shape}, the shape of k."
        )
    check_dtype("flash_attention", "q", q, DTYPES)
    check_same_dtype("flash_attention", "k", k, "q", q)
    check_same_dtype("flash_attention", "v", v, "q", q)
