"""Public API of flash attention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..._arguments import (
    LANES,
    SegmentIds,
    check_dtype,
    check_ndim,
    check_same_dtype,
    checked_block,
    sublanes,
)
from .backward import launch_dkv, launch_dq
from .block_sizes import OPERATION, FlashBlockSizes, round_up
from .kernel import PositionMask, launch

DTYPES = ("float32", "bfloat16")
DEFAULT_BLOCK = 512
# An lse above any real score: a query that sees no key gets weights exp(score - lse) = 0.
NO_KEYS = 0.7 * float(jnp.finfo(jnp.float32).max)


@dataclass(frozen=True, kw_only=True)
class _Config:
    """Parameters that are static under tracing."""

    causal: bool
    sm_scale: float
    blocks: FlashBlockSizes


class _Saved(NamedTuple):
    """Values that the backward pass needs from the forward pass."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    ab: jax.Array | None
    segment_ids: SegmentIds | None
    out: jax.Array
    lse: jax.Array  # [batch, heads, q_seq], base 2


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None = None,
    segment_ids: SegmentIds | None = None,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
    block_sizes: FlashBlockSizes | None = None,
) -> jax.Array:
    """Compute attention, `softmax(sm_scale * (q @ k.T + ab)) @ v` for each batch entry and head.

    The softmax and all sums are float32; float32 inputs are multiplied at full float32 precision.
    Differentiable once, in reverse mode, with respect to q, k, v and ab. For a query that sees no
    key, the output and the gradients are zero. A sequence need not be a multiple of its
    block; if it is not, its arrays are copied.

    Args:
      q: float32 or bfloat16 `[batch, heads, q_seq, head_dim]`.
      k: `[batch, heads, kv_seq, head_dim]`, with the dtype of `q`.
      v: `[batch, heads, kv_seq, head_dim]`, with the dtype of `q`.
      ab: attention bias, float32 or bfloat16 `[batch, heads, q_seq, kv_seq]`; -inf hides a key.
      segment_ids: a query sees only keys with its own id; None means one segment.
      causal: query i sees the keys up to i + kv_seq - q_seq, so that the last query sees all keys.
      sm_scale: factor of the scores; None is `1 / sqrt(head_dim)`.
      block_q: queries per grid step: a multiple of 8 (bfloat16: 16), or at least `q_seq`. None is
        512.
      block_k: keys per grid step: a multiple of 128, or at least `kv_seq`. None is 512.
      block_sizes: all block sizes of all kernels, instead of `block_q` and `block_k`.

    Returns:
      `[batch, heads, q_seq, head_dim]`, with the dtype of `q`.

    Raises:
      ValueError: for any other shape, dtype or block size.
    """
    _check_arrays(q, k, v)
    if ab is not None:
        _check_bias(ab, q, k)
    if segment_ids is not None:
        _check_segment_ids(segment_ids, q, k)
    scale = 1 / math.sqrt(q.shape[3]) if sm_scale is None else sm_scale
    config = _Config(
        causal=bool(causal),
        sm_scale=float(scale),
        blocks=_blocks(q, k, block_q, block_k, block_sizes),
    )
    out: jax.Array = _attend(q, k, v, ab, segment_ids, config)
    return out


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    segment_ids: SegmentIds | None,
    config: _Config,
) -> jax.Array:
    out, _, _ = _forward(q, k, v, ab, segment_ids, config, save_residuals=False)
    return out


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    segment_ids: SegmentIds | None,
    config: _Config,
    *,
    save_residuals: bool,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Return the output, and l and m (base 2) if they are to be saved."""
    blocks, q_seq = config.blocks, q.shape[2]
    q_multiple, kv_multiple = blocks.block_q, blocks.block_k_major
    q_ids, kv_ids = segment_ids or (None, None)
    out, total, largest = launch(
        _padded(q, {2: q_multiple}),
        _padded(k, {2: kv_multiple}),
        _padded(v, {2: kv_multiple}),
        _padded(ab, {2: q_multiple, 3: kv_multiple}),
        _padded(q_ids, {1: q_multiple}),
        _padded(kv_ids, {1: kv_multiple}),
        sm_scale=config.sm_scale,
        mask=_mask(config, q, k, kv_multiple),
        block_b=blocks.block_b,
        block_q=blocks.block_q,
        block_k_major=blocks.block_k_major,
        block_k=blocks.block_k,
        save_residuals=save_residuals,
    )
    out = out[:, :, :q_seq]
    if total is None or largest is None:
        return out, None, None
    return out, total[:, :, :q_seq], largest[:, :, :q_seq]


def _attend_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    segment_ids: SegmentIds | None,
    config: _Config,
) -> tuple[jax.Array, _Saved]:
    out, total, largest = _forward(q, k, v, ab, segment_ids, config, save_residuals=True)
    assert total is not None
    assert largest is not None
    lse = jnp.where(total == 0.0, NO_KEYS, largest + jnp.log2(total))  # base 2
    return out, _Saved(q, k, v, ab, segment_ids, out, lse)


def _attend_backward(config: _Config, saved: _Saved, do: jax.Array) -> tuple[jax.Array | None, ...]:
    q, k, v, ab, segment_ids, out, lse = saved
    di = jnp.sum(out.astype(jnp.float32) * do.astype(jnp.float32), axis=3)

    def padded(q_multiple: int, kv_multiple: int) -> tuple[jax.Array | None, ...]:
        q_ids, kv_ids = segment_ids or (None, None)
        return (
            _padded(q, {2: q_multiple}),
            _padded(k, {2: kv_multiple}),
            _padded(v, {2: kv_multiple}),
            _padded(ab, {2: q_multiple, 3: kv_multiple}),
            _padded(q_ids, {1: q_multiple}),
            _padded(kv_ids, {1: kv_multiple}),
            _padded(do, {2: q_multiple}),
            _padded(lse, {2: q_multiple}, value=NO_KEYS),
            _padded(di, {2: q_multiple}),
        )

    blocks, q_seq, kv_seq = config.blocks, q.shape[2], k.shape[2]
    dk, dv = launch_dkv(
        *padded(blocks.block_q_major_dkv, blocks.block_k_major_dkv),
        sm_scale=config.sm_scale,
        mask=_mask(config, q, k, blocks.block_k_major_dkv),
        block_q_major=blocks.block_q_major_dkv,
        block_q=blocks.block_q_dkv,
        block_k_major=blocks.block_k_major_dkv,
        block_k=blocks.block_k_dkv,
    )
    dq, dab = launch_dq(
        *padded(blocks.block_q_dq, blocks.block_k_major_dq),
        sm_scale=config.sm_scale,
        mask=_mask(config, q, k, blocks.block_k_major_dq),
        block_q=blocks.block_q_dq,
        block_k_major=blocks.block_k_major_dq,
        block_k=blocks.block_k_dq,
    )
    if dab is not None:
        dab = dab[:, :, :q_seq, :kv_seq]
    return dq[:, :, :q_seq], dk[:, :, :kv_seq], dv[:, :, :kv_seq], dab, None


_attend.defvjp(_attend_forward, _attend_backward)


def _mask(config: _Config, q: jax.Array, k: jax.Array, kv_multiple: int) -> PositionMask:
    q_seq, kv_seq = q.shape[2], k.shape[2]
    return PositionMask(
        diagonal=kv_seq - q_seq if config.causal else None,
        kv_seq=kv_seq if kv_seq % kv_multiple else None,
    )


def _padded(
    x: jax.Array | None, multiples: Mapping[int, int], *, value: float = 0.0
) -> jax.Array | None:
    """Return `x` padded with `value` at the end of each axis of `multiples` to that multiple."""
    if x is None:
        return None
    widths = [(0, -size % multiples.get(axis, 1)) for axis, size in enumerate(x.shape)]
    return jnp.pad(x, widths, constant_values=value) if any(w for _, w in widths) else x


def _blocks(
    q: jax.Array,
    k: jax.Array,
    block_q: int | None,
    block_k: int | None,
    block_sizes: FlashBlockSizes | None,
) -> FlashBlockSizes:
    if block_sizes is None:
        blocks = [
            _checked_block("block_q", block_q, sublanes(q.dtype), "q_seq", q.shape[2]),
            _checked_block("block_k", block_k, LANES, "kv_seq", k.shape[2]),
        ]
        return FlashBlockSizes.square(*blocks).fitted(q, k)
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block is not None:
            raise ValueError(
                f"{OPERATION}: {name} is {block!r}. "
                "It must be None where block_sizes is given, which has all blocks."
            )
    return block_sizes.fitted(q, k)


def _checked_block(name: str, block: int | None, multiple: int, dim: str, size: int) -> int:
    block = DEFAULT_BLOCK if block is None else block
    return round_up(
        checked_block(OPERATION, name, block, multiple=multiple, dim=dim, size=size), multiple
    )


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    check_ndim(OPERATION, "q", q, ("batch", "heads", "q_seq", "head_dim"))
    check_ndim(OPERATION, "k", k, ("batch", "heads", "kv_seq", "head_dim"))
    check_ndim(OPERATION, "v", v, ("batch", "heads", "kv_seq", "head_dim"))
    batch, heads, _, head_dim = q.shape
    if k.shape != (batch, heads, k.shape[2], head_dim):
        raise ValueError(
            f"{OPERATION}: k has shape {k.shape}. "
            f"It must be ({batch}, {heads}, kv_seq, {head_dim}), to fit q."
        )
    if v.shape != k.shape:
        raise ValueError(
            f"{OPERATION}: v has shape {v.shape}. It must be {k.shape}, the shape of k."
        )
    check_dtype(OPERATION, "q", q, DTYPES)
    check_same_dtype(OPERATION, "k", k, "q", q)
    check_same_dtype(OPERATION, "v", v, "q", q)


def _check_bias(ab: jax.Array, q: jax.Array, k: jax.Array) -> None:
    check_ndim(OPERATION, "ab", ab, ("batch", "heads", "q_seq", "kv_seq"))
    expected = (*q.shape[:3], k.shape[2])
    if ab.shape != expected:
        raise ValueError(
            f"{OPERATION}: ab has shape {ab.shape}. "
            f"It must be {expected}: [batch, heads, q_seq, kv_seq]."
        )
    check_dtype(OPERATION, "ab", ab, DTYPES)


def _check_segment_ids(segment_ids: SegmentIds, q: jax.Array, k: jax.Array) -> None:
    for name, ids, like in (("q", segment_ids.q, q), ("kv", segment_ids.kv, k)):
        name, dim = f"segment_ids.{name}", f"{name}_seq"
        check_ndim(OPERATION, name, ids, ("batch", dim))
        expected = (like.shape[0], like.shape[2])
        if ids.shape != expected:
            raise ValueError(
                f"{OPERATION}: {name} has shape {ids.shape}. It must be {expected}: [batch, {dim}]."
            )
        check_dtype(OPERATION, name, ids, ("int32",))
