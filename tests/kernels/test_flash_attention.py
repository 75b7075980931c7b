"""The errors of `flash_attention`, its masks, and the blocks that it skips."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import flash_attention, operation

SHAPE = (1, 2, 256, 64)


def message_of(q: object, k: object, v: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        flash_attention(q, k, v, **kwargs)
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
    ],
)
def test_block(dtype: str, name: str, block: object, message: str) -> None:
    x = jnp.ones(SHAPE, dtype)
    expected = f"flash_attention: {name} is {block}. {message}"
    assert message_of(x, x, x, **{name: block}) == expected


@pytest.mark.parametrize("sm_scale", [float("nan"), float("inf"), "1"])
def test_sm_scale(sm_scale: object) -> None:
    x = jnp.ones(SHAPE)
    expected = f"flash_attention: sm_scale is {sm_scale!r}. It must be a finite number."
    assert message_of(x, x, x, sm_scale=sm_scale) == expected


@pytest.mark.parametrize("mode", [True, pltpu.InterpretParams()], ids=["hlo", "tpu"])
def test_fully_masked_rows_are_zero(mode: object) -> None:
    q, k, v = random_qkv(q_seq=256, kv_seq=100)
    with pltpu.force_tpu_interpret_mode(mode):
        out = np.asarray(flash_attention(q, k, v, causal=True, block_q=64, block_k=128))
    np.testing.assert_array_equal(out[0, 0, :156], 0.0)
    # The first query that sees a key sees only key 0.
    np.testing.assert_allclose(out[0, 0, 156], v[0, 0, 0], rtol=1e-6)


def test_causal_skips_blocks_above_the_diagonal() -> None:
    q, k, v = random_qkv(q_seq=256, kv_seq=256)
    # A masked NaN still spoils its row through 0 * NaN, so a clean row means a skipped block.
    spoiled = [x.at[:, :, 128:].set(jnp.nan) for x in (k, v)]
    with pltpu.force_tpu_interpret_mode(True):
        out = flash_attention(q, *spoiled, causal=True, block_q=64, block_k=128)
    expected = operation("flash_attention").reference(q, k, v, causal=True)
    np.testing.assert_allclose(out[:, :, :128], expected[:, :, :128], rtol=1e-5, atol=1e-5)
    assert np.isnan(out[:, :, 128:]).all()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = random_qkv(q_seq=64, kv_seq=256)
    with pltpu.force_tpu_interpret_mode(True):
        out = flash_attention(q, k, v, sm_scale=1e4, block_q=64, block_k=128)
    expected = operation("flash_attention").reference(q, k, v, sm_scale=1e4)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)
