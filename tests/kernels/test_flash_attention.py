"""Errors of `flash_attention`, its masks, and the blocks that it skips.

Values and gradients of its specs are compared with the reference in `test_operations`.
"""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as jaxs
from pallas_debug_kernels import flash_attention, operation
from pallas_debug_kernels.ops import flash_attention as ours
from pallas_debug_kernels.ops.flash_attention import BlockSizes, SegmentIds

SHAPE = (1, 2, 256, 64)
IDS = np.zeros((1, 256), np.int32)


def message_of(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ValueError) as error:
        flash_attention(*args, **kwargs)
    return str(error.value)


def random_qkv(q_seq: int, kv_seq: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = [(1, 1, seq, 64) for seq in (q_seq, kv_seq, kv_seq)]
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)


@pytest.mark.parametrize(
    "q_shape, k_shape, v_shape, message",
    [
        (
            (256, 64),
            SHAPE,
            SHAPE,
            "q has shape (256, 64). It must have 4 dimensions: [batch, heads, q_seq, head_dim].",
        ),
        (
            SHAPE,
            (256, 64),
            SHAPE,
            "k has shape (256, 64). It must have 4 dimensions: [batch, heads, kv_seq, head_dim].",
        ),
        (
            SHAPE,
            SHAPE,
            (1, 2, 0, 64),
            "v has shape (1, 2, 0, 64). "
            "Each dimension of [batch, heads, kv_seq, head_dim] must be at least 1.",
        ),
        (
            SHAPE,
            (1, 1, 256, 64),
            (1, 1, 256, 64),
            "k has shape (1, 1, 256, 64). It must be (1, 2, kv_seq, 64), to fit q.",
        ),
        (
            SHAPE,
            SHAPE,
            (1, 2, 128, 64),
            "v has shape (1, 2, 128, 64). It must be (1, 2, 256, 64), the shape of k.",
        ),
    ],
)
def test_shape(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...], message: str
) -> None:
    arrays = (jnp.ones(shape) for shape in (q_shape, k_shape, v_shape))
    assert message_of(*arrays) == f"flash_attention: {message}"


@pytest.mark.parametrize(
    "dtypes, message",
    [
        (["float16"] * 3, "q has dtype float16. It must be float32 or bfloat16."),
        (
            ["bfloat16", "float32", "bfloat16"],
            "k has dtype float32. It must be bfloat16, the dtype of q.",
        ),
        (
            ["float32", "float32", "bfloat16"],
            "v has dtype bfloat16. It must be float32, the dtype of q.",
        ),
    ],
)
def test_dtype(dtypes: list[str], message: str) -> None:
    arrays = (jnp.ones(SHAPE, dtype) for dtype in dtypes)
    assert message_of(*arrays) == f"flash_attention: {message}"


@pytest.mark.parametrize(
    "dtype, name, block, message",
    [
        (
            "float32",
            "block_q",
            100,
            "It must be a positive multiple of 8, or at least q_seq, which is 256. Try block_q=96.",
        ),
        (
            "bfloat16",
            "block_q",
            8,
            "It must be a positive multiple of 16, or at least q_seq, which is 256. "
            "Try block_q=16.",
        ),
        (
            "float32",
            "block_k",
            64,
            "It must be a positive multiple of 128, or at least kv_seq, which is 256. "
            "Try block_k=128.",
        ),
        ("float32", "block_k", 128.0, "It must be an int."),
        ("float32", "block_q", True, "It must be an int."),
    ],
)
def test_block(dtype: str, name: str, block: object, message: str) -> None:
    x = jnp.ones(SHAPE, dtype)
    expected = f"flash_attention: {name} is {block}. {message}"
    assert message_of(x, x, x, **{name: block}) == expected


def test_block_sizes_are_frozen_and_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        BlockSizes().block_q = 128
    with pytest.raises(TypeError):
        BlockSizes(128)
    assert len(fields(BlockSizes)) == 11
    assert hash(BlockSizes()) == hash(BlockSizes(block_q=512))


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"block_b": 0}, "block_b is 0. It must be a positive int."),
        ({"block_q_dq": -8}, "block_q_dq is -8. It must be a positive int."),
        ({"block_k_dkv": 128.0}, "block_k_dkv is 128.0. It must be a positive int."),
        ({"block_k_dq": True}, "block_k_dq is True. It must be a positive int."),
        ({"block_k": 384}, "block_k is 384. It must divide block_k_major, which is 512."),
        (
            {"block_q_major_dkv": 256},
            "block_q_dkv is 512. It must divide block_q_major_dkv, which is 256.",
        ),
        (
            {"block_k_dkv": 1024},
            "block_k_dkv is 1024. It must divide block_k_major_dkv, which is 512.",
        ),
        (
            {"block_k_major_dq": 640},
            "block_k_dq is 512. It must divide block_k_major_dq, which is 640.",
        ),
    ],
)
def test_block_sizes(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        BlockSizes(**sizes)
    assert str(error.value) == f"flash_attention: {message}"


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (
            {"block_sizes": BlockSizes(block_q=100)},
            "block_q is 100. It must be a positive multiple of 8, or at least q_seq, "
            "which is 256. Try block_q=96.",
        ),
        (
            {"block_sizes": BlockSizes(block_k_major_dq=128, block_k_dq=64)},
            "block_k_dq is 64. It must be a positive multiple of 128, or at least kv_seq, "
            "which is 256. Try block_k_dq=128.",
        ),
        (
            {"block_sizes": BlockSizes(block_q_major_dkv=64, block_q_dkv=64)},
            "block_q_dkv is 64. It must be a positive multiple of 128, or at least q_seq, "
            "which is 256. Try block_q_dkv=128.",
        ),
        (
            {"block_sizes": BlockSizes(block_b=2)},
            "block_b is 2. It must divide the batch, which is 1.",
        ),
        ({"block_sizes": 128}, "block_sizes is 128. It must be a BlockSizes, or None."),
        (
            {"block_sizes": BlockSizes(), "block_k": 128},
            "block_k is 128. It must be None where block_sizes is given, which has all blocks.",
        ),
    ],
)
def test_block_sizes_that_do_not_fit(kwargs: dict[str, Any], message: str) -> None:
    x = jnp.ones(SHAPE)
    assert message_of(x, x, x, **kwargs) == f"flash_attention: {message}"


def test_block_sizes_are_cut_down_to_the_sequences() -> None:
    q, k = jnp.ones((1, 1, 20, 64)), jnp.ones((1, 1, 300, 64))
    sizes = BlockSizes(block_k=128).fitted(q, k)
    assert (sizes.block_q, sizes.block_q_major_dkv) == (24, 128)
    assert (sizes.block_k_major, sizes.block_k, sizes.block_k_dq) == (384, 128, 384)


@pytest.mark.parametrize(
    "ab, message",
    [
        (
            jnp.ones((256, 256)),
            "ab has shape (256, 256). It must have 4 dimensions: [batch, heads, q_seq, kv_seq].",
        ),
        (
            jnp.ones((1, 1, 256, 256)),
            "ab has shape (1, 1, 256, 256). "
            "It must be (1, 2, 256, 256): [batch, heads, q_seq, kv_seq].",
        ),
        (
            jnp.ones((1, 2, 256, 256), jnp.int32),
            "ab has dtype int32. It must be float32 or bfloat16.",
        ),
    ],
)
def test_bias(ab: jax.Array, message: str) -> None:
    x = jnp.ones(SHAPE)
    assert message_of(x, x, x, ab) == f"flash_attention: {message}"


@pytest.mark.parametrize(
    "segment_ids, message",
    [
        (
            (IDS, IDS),
            "segment_ids is a tuple. It must be a SegmentIds(q, kv), or None.",
        ),
        (
            SegmentIds(IDS[0], IDS),
            "segment_ids.q has shape (256,). It must have 2 dimensions: [batch, q_seq].",
        ),
        (
            SegmentIds(IDS, IDS[:, :128]),
            "segment_ids.kv has shape (1, 128). It must be (1, 256): [batch, kv_seq].",
        ),
        (
            SegmentIds(IDS, IDS.astype(np.float32)),
            "segment_ids.kv has dtype float32. It must be int32.",
        ),
    ],
)
def test_segment_ids(segment_ids: Any, message: str) -> None:
    x = jnp.ones(SHAPE)
    assert message_of(x, x, x, segment_ids=segment_ids) == f"flash_attention: {message}"


@pytest.mark.parametrize("sm_scale", [float("nan"), float("inf"), "1"])
def test_sm_scale(sm_scale: object) -> None:
    x = jnp.ones(SHAPE)
    expected = f"flash_attention: sm_scale is {sm_scale!r}. It must be a finite number."
    assert message_of(x, x, x, sm_scale=sm_scale) == expected


@pytest.mark.slow
def test_fully_masked_rows_are_zero_in_output_and_gradients() -> None:
    q, k, v = random_qkv(q_seq=256, kv_seq=100)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = flash_attention(q, k, v, causal=True, block_q=64, block_k=128)
        return out.sum(), out

    with pltpu.force_tpu_interpret_mode(True):
        (dq, dk, dv), out = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(q, k, v)
    np.testing.assert_array_equal(out[0, 0, :156], 0.0)
    np.testing.assert_array_equal(dq[0, 0, :156], 0.0)
    assert np.isfinite(dk).all()
    assert np.isfinite(dv).all()
    # The first query that sees a key sees only key 0.
    np.testing.assert_allclose(out[0, 0, 156], v[0, 0, 0], rtol=1e-6)


@pytest.mark.slow
def test_a_bias_of_minus_infinity_hides_keys() -> None:
    q, k, v = random_qkv(q_seq=128, kv_seq=128)
    ab = jnp.zeros((1, 1, 128, 128)).at[:, :, 0].set(-jnp.inf).at[:, :, 1, 1:].set(-jnp.inf)
    with pltpu.force_tpu_interpret_mode(True):
        out, residuals = flash_attention(q, k, v, ab, save_residuals=True)
    np.testing.assert_array_equal(out[0, 0, 0], 0.0)
    np.testing.assert_allclose(out[0, 0, 1], v[0, 0, 0], rtol=1e-6)
    assert residuals.l[0, 0, 0] == 0.0
    assert residuals.m[0, 0, 0] == -np.inf


@pytest.mark.slow
def test_residuals() -> None:
    q, k, v = random_qkv(q_seq=200, kv_seq=300)

    def attend(q: jax.Array) -> Any:
        return flash_attention(q, k, v, block_q=64, block_k=128, save_residuals=True)

    with pltpu.force_tpu_interpret_mode(True):
        out, residuals = attend(q)
        gradient = jax.grad(lambda q: sum(x.sum() for x in attend(q)[1]))(q)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 8
    np.testing.assert_allclose(residuals.m, scores.max(axis=3), rtol=1e-5)
    np.testing.assert_allclose(
        residuals.l, np.exp(scores - scores.max(axis=3, keepdims=True)).sum(axis=3), rtol=1e-5
    )
    weights = np.exp(scores - residuals.m[..., None]) / residuals.l[..., None]
    np.testing.assert_allclose(out, np.einsum("bhqk,bhkd->bhqd", weights, v), atol=1e-5)
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.slow
def test_gradient_of_the_bias() -> None:
    q, k, v = random_qkv(q_seq=200, kv_seq=300)
    ab = jnp.asarray(np.random.default_rng(1).standard_normal((1, 1, 200, 300), np.float32))
    ids = SegmentIds(*(jnp.arange(seq, dtype=jnp.int32)[None] // 150 for seq in (200, 300)))
    weights = jnp.asarray(np.random.default_rng(2).standard_normal(q.shape, np.float32))

    def gradient(function: Any) -> jax.Array:
        def loss(ab: jax.Array) -> jax.Array:
            out: jax.Array = function(q, k, v, ab, ids, causal=True, block_q=64, block_k=128)
            return (out * weights).sum()

        return jax.grad(loss)(ab)

    with pltpu.force_tpu_interpret_mode(True):
        actual = gradient(flash_attention)
    expected = gradient(operation("flash_attention").reference)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


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


@pytest.mark.slow
def test_large_scores_do_not_overflow() -> None:
    q, k, v = random_qkv(q_seq=64, kv_seq=256)
    with pltpu.force_tpu_interpret_mode(True):
        out = flash_attention(q, k, v, sm_scale=1e4, block_q=64, block_k=128)
    expected = operation("flash_attention").reference(q, k, v, sm_scale=1e4)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)
