"""`splash_attention` beyond its specs: other implementations, skipping, batches."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as bundled,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as bundled_masks,
)
from pallas_debug_kernels import make_splash_attention, splash_attention
from pallas_debug_kernels.ops.splash_attention import (
    BlockSizes,
    CausalMask,
    LocalMask,
    SegmentIds,
    splash_attention_reference,
)

SHAPE = (256, 256)
CAUSAL = CausalMask(SHAPE)
SMALL = BlockSizes.same(128, 128)


def random_qkv(
    q_heads: int = 1, kv_heads: int = 1, dtype: str = "float32", head_dim: int = 64
) -> tuple[jax.Array, ...]:
    """q, k, v and the cotangent of the output; q is scaled."""
    rng = np.random.default_rng(0)
    q, k, v, do = (
        rng.standard_normal((heads, 256, head_dim), np.float32)
        for heads in (q_heads, kv_heads, kv_heads, q_heads)
    )
    return tuple(jnp.asarray(x, dtype) for x in (q * head_dim**-0.5, k, v, do))


def forward_and_backward(attend: Callable[..., Any], *args: jax.Array) -> list[jax.Array]:
    """The output and the gradients of q, k and v, in HLO interpret mode."""

    @jax.jit
    def both(q: jax.Array, k: jax.Array, v: jax.Array, do: jax.Array) -> list[jax.Array]:
        out, vjp = jax.vjp(attend, q, k, v)
        return [out, *vjp(do)]

    with pltpu.force_tpu_interpret_mode(True):
        return both(*args)


def error_of(actual: jax.Array, expected: jax.Array) -> float:
    """Relative to the largest entry."""
    wide, exact = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert wide.shape == exact.shape
    return float(np.abs(wide - exact).max() / np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads, dtype, mask, bundled_mask, soft_cap",
    [
        ((2, 2), "float32", CAUSAL, bundled_masks.CausalMask(SHAPE), None),
        (
            (4, 2),
            "bfloat16",
            LocalMask(SHAPE, window_size=(70, 5), offset=2),
            bundled_masks.LocalMask(SHAPE, window_size=(70, 5), offset=2),
            3.0,
        ),
    ],
    ids=["mha_causal_f32", "gqa_local_soft_cap_bf16"],
)
def test_equals_the_splash_attention_that_ships_with_jax(
    heads: tuple[int, int], dtype: str, mask: Any, bundled_mask: Any, soft_cap: float | None
) -> None:
    args = random_qkv(*heads, dtype=dtype, head_dim=128)
    ids = jnp.asarray(np.repeat([0, 1], [90, 166]), jnp.int32)
    sizes = dict.fromkeys(BlockSizes.__dataclass_fields__, 128)
    theirs = bundled.make_splash_mha(
        bundled_masks.MultiHeadMask([bundled_mask] * heads[0]),
        block_sizes=bundled.BlockSizes(**sizes),
        attn_logits_soft_cap=soft_cap,
        head_shards=1,
        q_seq_shards=1,
    )
    expected = forward_and_backward(
        lambda q, k, v: theirs(q, k, v, bundled.SegmentIds(ids, ids)), *args
    )
    ours = make_splash_attention(
        mask, block_sizes=BlockSizes(**sizes), attn_logits_soft_cap=soft_cap
    )
    actual = forward_and_backward(lambda q, k, v: ours(q, k, v, SegmentIds(ids, ids)), *args)
    for a, e in zip(actual, expected, strict=True):
        assert error_of(a, e) <= (1e-5 if dtype == "float32" else 2**-7)


@pytest.mark.slow
def test_hidden_blocks_are_neither_read_forward_nor_backward() -> None:
    q, k, v, do = random_qkv()
    # A masked NaN still spoils its row through 0 * NaN, so a clean row means a skipped block.
    attend = partial(splash_attention, mask=CAUSAL, block_sizes=SMALL)
    spoiled_k, spoiled_v = (x.at[:, 128:].set(jnp.nan) for x in (k, v))
    out, dq, _, _ = forward_and_backward(attend, q, spoiled_k, spoiled_v, do)
    expected = forward_and_backward(partial(splash_attention_reference, mask=CAUSAL), q, k, v, do)
    assert error_of(out[:, :128], expected[0][:, :128]) <= 1e-5
    assert error_of(dq[:, :128], expected[1][:, :128]) <= 1e-5
    assert np.isnan(out[:, 128:]).all()

    # Under the transposed mask, the last keys are hidden from the first queries.
    spoiled_q = q.at[:, :128].set(jnp.nan)
    _, _, dk, dv = forward_and_backward(attend, spoiled_q, k, v, do)
    for actual, whole in ((dk, expected[2]), (dv, expected[3])):
        assert error_of(actual[:, 128:], whole[:, 128:]) <= 1e-5
        assert np.isnan(actual[:, :128]).any()
