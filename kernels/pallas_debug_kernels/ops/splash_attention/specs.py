"""Argument sets for `splash_attention`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..._arguments import SegmentIds
from ...spec import Spec
from .block_sizes import SplashBlockSizes
from .masks import CausalMask, FullMask, LocalMask, MultiHeadMask

# (num_q_heads, num_kv_heads, q_seq, kv_seq, head_dim)
Shape = tuple[int, int, int, int, int]


def _spec(name: str, tag: str, shape: Shape, dtype: DTypeLike, **kwargs: object) -> Spec:
    q_heads, kv_heads, q_seq, kv_seq, head_dim = shape
    q = jax.ShapeDtypeStruct((q_heads, q_seq, head_dim), dtype)
    kv = jax.ShapeDtypeStruct((kv_heads, kv_seq, head_dim), dtype)
    kwargs = {"sm_scale": head_dim**-0.5, **kwargs}
    return Spec(name=name, tags=(tag,), args=(q, kv, kv), kwargs=kwargs)


def _segments(q_lengths: tuple[int, ...], kv_lengths: tuple[int, ...]) -> SegmentIds:
    """Return ids 0, 1, ... for segments of these lengths."""
    q_ids, kv_ids = (
        np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        for lengths in (q_lengths, kv_lengths)
    )
    return SegmentIds(q=q_ids, kv=kv_ids)  # type: ignore[arg-type]


def _random_mask(*shape: int) -> np.ndarray:
    """Return a sparse mask with some empty rows and blocks, and some full blocks."""
    rng = np.random.default_rng(0)
    mask = rng.random(shape) < 0.1
    mask[..., :128, :128] = False
    mask[..., :128, 128:256] = True
    mask[..., 200, :] = False
    return mask


_SQUARE = (256, 256)
_128 = {"block_sizes": SplashBlockSizes.same(128, 128)}
_UNEQUAL = {
    "block_sizes": SplashBlockSizes(
        block_q=128,
        block_kv=256,
        block_kv_compute=128,
        block_q_dkv=256,
        block_kv_dkv=256,
        block_kv_dkv_compute=128,
        block_q_dq=256,
        block_kv_dq=128,
    )
}
_ONE_QUERY_SEES_KEYS = SegmentIds(
    q=np.arange(256, dtype=np.int32),  # type: ignore[arg-type]
    kv=np.full(256, 7, np.int32),  # type: ignore[arg-type]
)
_4K = (4096, 4096)
_MHA, _GQA = (2, 2, *_4K, 128), (4, 2, *_4K, 128)
_F32, _BF16 = jnp.float32, jnp.bfloat16

SPECS = (
    _spec("f32_causal", "small", (2, 2, *_SQUARE, 64), _F32, mask=CausalMask(_SQUARE), **_128),
    _spec(
        "bf16_mqa_local",
        "small",
        (2, 1, *_SQUARE, 64),
        _BF16,
        mask=LocalMask(_SQUARE, window_size=(100, 20), offset=5),
        **_128,
    ),
    _spec("f32_numpy", "small", (1, 1, *_SQUARE, 64), _F32, mask=_random_mask(*_SQUARE), **_128),
    _spec("f32_full", "edge", (1, 1, *_SQUARE, 64), _F32, mask=FullMask(_SQUARE), **_UNEQUAL),
    _spec(
        "bf16_multi_head",
        "edge",
        (2, 2, *_SQUARE, 128),
        _BF16,
        mask=MultiHeadMask([CausalMask(_SQUARE), LocalMask(_SQUARE, window_size=(64, 64))]),
        **_128,
    ),
    _spec(
        "f32_segments_soft_cap",
        "edge",
        (1, 1, *_SQUARE, 64),
        _F32,
        mask=CausalMask(_SQUARE),
        segment_ids=_segments((100, 156), (100, 156)),
        attn_logits_soft_cap=2.0,
        **_128,
    ),
    _spec(
        "bf16_everything",
        "edge",
        (4, 2, 256, 384, 80),
        _BF16,
        mask=_random_mask(4, 256, 384),
        segment_ids=_segments((100, 156), (200, 184)),
        attn_logits_soft_cap=5.0,
        **_128,
    ),
    _spec(
        "one_block", "edge", (1, 1, 128, 128, 32), _F32, mask=CausalMask((128, 128)), sm_scale=1.0
    ),
    _spec(
        "fully_masked_rows",
        "edge",
        (2, 1, 256, 128, 64),
        _F32,
        mask=LocalMask((256, 128), window_size=(10, 0), offset=-60),
        **_128,
    ),
    _spec(
        "bf16_fully_masked_rows",
        "edge",
        (1, 1, *_SQUARE, 64),
        _BF16,
        mask=~np.tri(256, k=30, dtype=bool),
        **_128,
    ),
    _spec(
        "segments_without_keys",
        "edge",
        (1, 1, *_SQUARE, 64),
        _F32,
        mask=FullMask(_SQUARE),
        segment_ids=_ONE_QUERY_SEES_KEYS,
        **_128,
    ),
    _spec("bf16_4k_causal", "bench", _MHA, _BF16, mask=CausalMask(_4K)),
    _spec("bf16_4k_gqa_causal", "bench", _GQA, _BF16, mask=CausalMask(_4K)),
    _spec("bf16_4k_local", "bench", _MHA, _BF16, mask=LocalMask(_4K, window_size=(1024, 0))),
)
