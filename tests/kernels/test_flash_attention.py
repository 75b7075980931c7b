"""Masks of `flash_attention`, and the blocks that it skips.

Values and gradients of its specs are compared with the reference in `test_operations`.
"""

from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as jaxs
from pallas_debug_kernels import flash_attention, operation
from pallas_debug_kernels.ops import flash_attention as ours
from pallas_debug_kernels.ops.flash_attention import BlockSizes


def random_qkv(q_seq: int, kv_seq: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = [(1, 1, seq, 64) for seq in (q_seq, kv_seq, kv_seq)]
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)


def test_block_sizes_are_cut_down_to_the_sequences() -> None:
    q, k = jnp.ones((1, 1, 20, 64)), jnp.ones((1, 1, 300, 64))
    sizes = BlockSizes(block_k=128).fitted(q, k)
    assert (sizes.block_q, sizes.block_q_major_dkv) == (24, 128)
    assert (sizes.block_k_major, sizes.block_k, sizes.block_k_dq) == (384, 128, 384)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-5), ("bfloat16", 2**-6)], ids=["f32", "bf16"]
)
def test_equals_jaxs_flash_attention(dtype: str, tolerance: float) -> None:
    """Causal, with a bias and segments, in value and in every gradient."""
    rng = np.random.default_rng(0)
    shape, blocks = (2, 1, 256, 64), {field.name: 128 for field in fields(BlockSizes)}
    q, k, v, weights = (jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(4))
    ab = jnp.asarray(rng.standard_normal((2, 1, 256, 256)), dtype)
    ids = jnp.arange(256, dtype=jnp.int32)[None].repeat(2, axis=0) // 100

    def both(module: Any) -> list[jax.Array]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array, ab: jax.Array) -> jax.Array:
            return module.flash_attention(
                *(q, k, v, ab, module.SegmentIds(ids, ids)),
                causal=True,
                sm_scale=0.125,
                block_sizes=module.BlockSizes(**{**blocks, "block_b": 1}),
            )

        out, pullback = jax.vjp(attend, q, k, v, ab)
        return [out, *pullback(weights)]

    with pltpu.force_tpu_interpret_mode(True):
        actual, expected = both(ours), both(jaxs)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * np.abs(e).max())


@pytest.mark.slow
def test_causal_skips_blocks_above_the_diagonal() -> None:
    q, k, v = random_qkv(q_seq=256, kv_seq=256)
    # A masked NaN still spoils its row through 0 * NaN, so a clean row means a skipped block.
    spoiled = [x.at[:, :, 128:].set(jnp.nan) for x in (k, v)]
    with pltpu.force_tpu_interpret_mode(True):
        out = flash_attention(q, *spoiled, causal=True, block_q=64, block_k=128)
    expected = operation("flash_attention").reference(q, k, v, causal=True)
    np.testing.assert_allclose(out[:, :, :128], expected[:, :, :128], rtol=1e-5, atol=1e-5)
    assert np.isnan(out[:, :, 128:]).all()
