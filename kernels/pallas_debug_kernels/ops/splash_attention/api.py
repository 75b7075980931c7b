"""Public API of splash attention, which is block-sparse."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._arguments import SegmentIds, check_dtype, check_ndim, check_same_dtype
from .block_sizes import SplashBlockSizes
from .dkv import launch_dkv
from .dq import launch_dq
from .kernel import launch_forward
from .mask_info import MaskInfo, process_mask
from .masks import IntervalMask, Mask, MultiHeadMask, NumpyMask
from .tile import MASK_VALUE, Score

DTYPES = ("float32", "bfloat16")

AnyMask = Mask | MultiHeadMask | np.ndarray
Attention = Callable[..., jax.Array]


def splash_attention(
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
    """Compute attention, without fetching or computing blocks that the mask leaves empty.

    For each head, `softmax(cap(sm_scale * q @ k.T)) @ v` over the keys that a query sees. The
    softmax and all sums are float32; float32 inputs are multiplied at full float32 precision. For a
    query that sees no key, output and gradients are zero. Use `jax.vmap` for batches.

    Unlike in `flash_attention`, scores are not scaled by default: scale q before the call, or pass
    `sm_scale=1 / math.sqrt(head_dim)`.

    Args:
      q: float32 or bfloat16 `[num_q_heads, q_seq, head_dim]`.
      k: `[num_kv_heads, kv_seq, head_dim]`, with the dtype of `q`. `num_q_heads` is a multiple of
        `num_kv_heads`; consecutive query heads share a head of keys (GQA, and MQA for one head).
      v: `[num_kv_heads, kv_seq, head_dim]`, with the dtype of `q`.
      mask: a `Mask` for all heads, a `MultiHeadMask`, or a bool array `[q_seq, kv_seq]` or
        `[num_q_heads, q_seq, kv_seq]`.
      segment_ids: a query sees only the keys with its own id. Blocks that are empty only because of
        segments are not skipped.
      sm_scale: factor of the scores.
      attn_logits_soft_cap: scores become `cap * tanh(scores / cap)`; None is no cap.
      block_sizes: None is `SplashBlockSizes.default(q_seq, kv_seq)`.

    Returns:
      `[num_q_heads, q_seq, head_dim]`, with the dtype of `q`.

    Raises:
      ValueError: for any other shape, dtype or block size, or a mask that does not fit.
    """
    _check_arrays(q, k, v)
    mask = _as_mask(mask)
    _check_mask_fits(mask, q, k)
    attend = make_splash_attention(
        mask,
        sm_scale=sm_scale,
        attn_logits_soft_cap=attn_logits_soft_cap,
        block_sizes=block_sizes,
    )
    return attend(q, k, v, segment_ids)


def make_splash_attention(
    mask: AnyMask,
    *,
    sm_scale: float = 1.0,
    attn_logits_soft_cap: float | None = None,
    block_sizes: SplashBlockSizes | None = None,
) -> Attention:
    """Process a mask once, for many calls: `attend = make_splash_attention(mask)`.

    `attend(q, k, v, segment_ids)` then equals `splash_attention` with these arguments.

    Raises:
      ValueError: for a mask or block size that `splash_attention` does not accept.
    """
    mask = _as_mask(mask)
    q_seq, kv_seq = mask.shape[-2:]
    blocks = SplashBlockSizes.default(q_seq, kv_seq) if block_sizes is None else block_sizes
    blocks.check(q_seq, kv_seq)
    cap = attn_logits_soft_cap
    infos, computed = _processed(mask, blocks)
    static = _Static(
        scores=tuple(
            Score(
                sm_scale=float(sm_scale), soft_cap=None if cap is None else float(cap), computed=c
            )
            for c in computed
        ),
        block_sizes=blocks,
    )

    def attend(
        q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: SegmentIds | None = None
    ) -> jax.Array:
        _check_arrays(q, k, v)
        _check_mask_fits(mask, q, k)
        if segment_ids is not None:
            segment_ids = _checked_segment_ids(segment_ids, q.shape[1], k.shape[1])
        out: jax.Array = _attention(static, infos, q, k, v, segment_ids)
        return out

    return attend


class _Infos(NamedTuple):
    """Processed mask for each kernel."""

    forward: MaskInfo
    dkv: MaskInfo
    dq: MaskInfo


class _Static(NamedTuple):
    """Parameters that are static under tracing."""

    scores: tuple[Score, ...]  # of each kernel
    block_sizes: SplashBlockSizes


def _processed(
    mask: Mask | MultiHeadMask, blocks: SplashBlockSizes
) -> tuple[_Infos, tuple[IntervalMask | None, ...]]:
    """Return the mask for each kernel, and the part that each kernel computes."""
    forward = (blocks.block_q, blocks.block_kv)
    dkv = (blocks.block_q_dkv, blocks.block_kv_dkv)
    dq = (blocks.block_q_dq, blocks.block_kv_dq)
    processed = (
        process_mask(mask, forward),
        process_mask(mask, dkv, kv_major=True),
        process_mask(mask, dq),
    )
    if not np.any(processed[0][0].block_mask):
        raise ValueError(
            "splash_attention: mask is empty. It must have a visible entry: some query must see "
            "some key."
        )
    return _Infos(*(info for info, _ in processed)), tuple(c for _, c in processed)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    static: _Static,
    infos: _Infos,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: SegmentIds | None,
) -> jax.Array:
    out, _ = _forward(static, infos, q, k, v, segment_ids, save_logsumexp=False)
    return out


def _forward(
    static: _Static,
    infos: _Infos,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: SegmentIds | None,
    *,
    save_logsumexp: bool,
) -> tuple[jax.Array, jax.Array | None]:
    out, logsumexp = launch_forward(
        infos.forward,
        q,
        k,
        v,
        segment_ids,
        score=static.scores[0],
        block_sizes=static.block_sizes,
        save_logsumexp=save_logsumexp,
    )
    return out, logsumexp


def _attention_fwd(
    static: _Static,
    infos: _Infos,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segment_ids: SegmentIds | None,
) -> tuple[jax.Array, tuple[Any, ...]]:
    out, logsumexp = _forward(static, infos, q, k, v, segment_ids, save_logsumexp=True)
    return out, (infos, q, k, v, segment_ids, out, logsumexp)


def _attention_bwd(static: _Static, kept: tuple[Any, ...], do: jax.Array) -> tuple[Any, ...]:
    infos, q, k, v, segment_ids, out, logsumexp = kept
    di = jnp.sum(out.astype(jnp.float32) * do.astype(jnp.float32), axis=-1)  # [num_q_heads, q_seq]
    # If a query sees no key, exp(MASK_VALUE - 0) makes its weights 0.
    logsumexp = jnp.where(logsumexp <= 0.5 * MASK_VALUE, 0.0, logsumexp)
    arrays = (q, k, v, do, logsumexp, di, segment_ids)
    _, dkv_score, dq_score = static.scores
    blocks = static.block_sizes
    dk, dv = launch_dkv(infos.dkv, *arrays, score=dkv_score, block_sizes=blocks)
    dq = launch_dq(infos.dq, *arrays, score=dq_score, block_sizes=blocks)
    return None, dq, dk, dv, None


_attention.defvjp(_attention_fwd, _attention_bwd)


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    check_ndim("splash_attention", "q", q, ("num_q_heads", "q_seq", "head_dim"))
    check_ndim("splash_attention", "k", k, ("num_kv_heads", "kv_seq", "head_dim"))
    check_ndim("splash_attention", "v", v, ("num_kv_heads", "kv_seq", "head_dim"))
    if k.shape[2] != q.shape[2]:
        raise ValueError(
            f"splash_attention: k has head_dim {k.shape[2]}. It must be {q.shape[2]}, that of q."
        )
    if v.shape != k.shape:
        raise ValueError(
            f"splash_attention: v has shape {v.shape}. It must be {k.shape}, the shape of k."
        )
    if q.shape[0] % k.shape[0]:
        raise ValueError(
            f"splash_attention: q has {q.shape[0]} heads. "
            f"It must have a multiple of {k.shape[0]}, the heads of k and v."
        )
    check_dtype("splash_attention", "q", q, DTYPES)
    check_same_dtype("splash_attention", "k", k, "q", q)
    check_same_dtype("splash_attention", "v", v, "q", q)


def _as_mask(mask: AnyMask) -> Mask | MultiHeadMask:
    if not isinstance(mask, np.ndarray):
        return mask
    return NumpyMask(mask) if mask.ndim == 2 else MultiHeadMask(map(NumpyMask, mask))


def _check_mask_fits(mask: Mask | MultiHeadMask, q: jax.Array, k: jax.Array) -> None:
    expected: tuple[int, ...] = (q.shape[1], k.shape[1])
    if len(mask.shape) == 3:
        expected = (q.shape[0], *expected)
    if mask.shape != expected:
        dims = "(num_q_heads, q_seq, kv_seq)" if len(expected) == 3 else "(q_seq, kv_seq)"
        raise ValueError(
            f"splash_attention: mask has shape {mask.shape}. It must be {expected}, {dims}."
        )


def _checked_segment_ids(segment_ids: SegmentIds, q_seq: int, kv_seq: int) -> SegmentIds:
    """Validate the ids, converting them to int32 arrays."""
    for name, ids, dim, size in (
        ("q", segment_ids[0], "q_seq", q_seq),
        ("kv", segment_ids[1], "kv_seq", kv_seq),
    ):
        if ids.shape != (size,):
            raise ValueError(
                f"splash_attention: segment_ids.{name} has shape {ids.shape}. "
                f"It must be ({size},), that is ({dim},)."
            )
    q_ids, kv_ids = (jnp.asarray(ids).astype(jnp.int32) for ids in segment_ids)
    return SegmentIds(q=q_ids, kv=kv_ids)
