"""`splash_attention` beyond its specs: other implementations, dynamic masks, skipping, errors."""

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
from pallas_debug_kernels import make_splash_attention, operation, splash_attention
from pallas_debug_kernels.ops.splash_attention import (
    MASK_VALUE,
    BlockSizes,
    CausalMask,
    FullMask,
    LocalMask,
    MultiHeadMask,
    NumpyMask,
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


def attention_in_bf16(q: jax.Array, k: jax.Array, v: jax.Array, *, mask: np.ndarray) -> jax.Array:
    """As one writes it down: each result in bfloat16."""
    group = q.shape[0] // k.shape[0]
    k, v = (jnp.repeat(x, group, axis=0) for x in (k, v))
    scores = jnp.where(mask, jnp.einsum("hqd,hkd->hqk", q, k), -1e9)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)], ids=["mha", "gqa"])
def test_bf16_is_within_the_error_of_a_bf16_reference(heads: tuple[int, int]) -> None:
    args = random_qkv(*heads, dtype="bfloat16")
    actual = forward_and_backward(partial(splash_attention, mask=CAUSAL, block_sizes=SMALL), *args)
    dense = CAUSAL[:, :]
    in_bf16 = forward_and_backward(partial(attention_in_bf16, mask=dense), *args)
    exact = forward_and_backward(
        partial(splash_attention_reference, mask=CAUSAL), *(x.astype(jnp.float32) for x in args)
    )
    for ours, theirs, expected in zip(actual, in_bf16, exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        assert error_of(ours, expected) <= error_of(theirs, expected)


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
@pytest.mark.parametrize("per_head", [False, True])
def test_dynamic_mask(per_head: bool) -> None:
    args = random_qkv(q_heads=2)
    dense = np.random.default_rng(1).random((2, *SHAPE) if per_head else SHAPE) < 0.3
    dense[..., :128, 128:] = False  # an empty block
    dense[..., 128:, 128:] = True  # a full one
    dense[..., 7, :] = False  # a row that sees nothing
    mask = jnp.asarray(dense)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return splash_attention(q, k, v, mask=mask, block_sizes=SMALL)

    actual = forward_and_backward(attend, *args)
    expected = forward_and_backward(partial(splash_attention_reference, mask=dense), *args)
    for a, e in zip(actual, expected, strict=True):
        assert error_of(a, e) <= 1e-5
    np.testing.assert_array_equal(actual[0][:, 7], 0.0)


@pytest.mark.slow
def test_a_dynamic_mask_may_be_an_argument_of_jit_and_of_vmap_where_it_is_not_batched() -> None:
    q, k, v, _ = random_qkv()
    batched = jnp.stack([q, 2 * q])

    @jax.jit
    def attend(q: jax.Array, mask: jax.Array) -> jax.Array:
        return splash_attention(q, k, v, mask=mask, block_sizes=SMALL)

    with pltpu.force_tpu_interpret_mode(True):
        actual = jax.vmap(attend, in_axes=(0, None))(batched, jnp.asarray(CAUSAL[:, :]))
    for x, a in zip(batched, actual, strict=True):
        assert error_of(a, splash_attention_reference(x, k, v, mask=CAUSAL)) <= 1e-5


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_a_batched_dynamic_mask_is_refused(jit: Callable[..., Any]) -> None:
    q, k, v, _ = random_qkv()
    attend = jit(lambda mask: splash_attention(q, k, v, mask=mask, block_sizes=SMALL))
    with pytest.raises(ValueError) as error:
        jax.vmap(attend)(jnp.ones((3, *SHAPE), bool))
    assert str(error.value) == (
        "splash_attention: mask is a jax.Array of shape (3, 256, 256) that jax.vmap batches "
        "(3 examples). It must be the same for the whole batch: give vmap the mask with "
        "in_axes=None, or call splash_attention for each mask under jax.lax.map."
    )


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


@pytest.mark.slow
def test_fully_masked_rows_are_zero_forward_and_backward() -> None:
    args = random_qkv(q_heads=2)
    # Queries 0 to 99 see nothing: 0 to 127 share a block with some that do.
    mask = LocalMask(SHAPE, window_size=(3, 0), offset=-100)
    out, dq, dk, dv = forward_and_backward(
        partial(splash_attention, mask=mask, block_sizes=SMALL), *args
    )
    np.testing.assert_array_equal(out[:, :100], 0.0)
    np.testing.assert_array_equal(dq[:, :100], 0.0)
    # The keys from 156 on are seen by no query.
    np.testing.assert_array_equal(dk[:, 156:], 0.0)
    np.testing.assert_array_equal(dv[:, 156:], 0.0)
    # Query 100 sees key 0 only.
    np.testing.assert_allclose(out[0, 100], args[2][0, 0], rtol=1e-6)
    for x in (out, dq, dk, dv):
        assert np.isfinite(x).all()


@pytest.mark.slow
def test_residuals_and_their_gradient() -> None:
    q, k, v, do = random_qkv(q_heads=2)
    mask = LocalMask(SHAPE, window_size=(3, 0), offset=-100)
    weights = do[..., 0]

    def loss(attend: Callable[..., Any], *args: jax.Array) -> jax.Array:
        out, logsumexp = attend(*args, mask=mask, save_residuals=True)
        seen = jnp.where(logsumexp > MASK_VALUE / 2, logsumexp, 0.0)
        return (out * do).sum() + (seen * weights).sum(), logsumexp

    with pltpu.force_tpu_interpret_mode(True):
        (_, logsumexp), grads = jax.jit(
            jax.value_and_grad(
                partial(loss, partial(splash_attention, block_sizes=SMALL)),
                argnums=(0, 1, 2),
                has_aux=True,
            )
        )(q, k, v)
    (_, expected), expected_grads = jax.value_and_grad(
        partial(loss, splash_attention_reference), argnums=(0, 1, 2), has_aux=True
    )(q, k, v)
    assert logsumexp.shape == (2, 256)
    assert logsumexp.dtype == jnp.float32
    np.testing.assert_array_equal(logsumexp[:, :100], np.float32(MASK_VALUE))
    assert error_of(logsumexp[:, 100:], expected[:, 100:]) <= 1e-5
    for a, e in zip(grads, expected_grads, strict=True):
        assert error_of(a, e) <= 1e-5


@pytest.mark.slow
def test_a_batch_with_its_own_segments() -> None:
    q, k, v, _ = (jnp.stack([x, 2 * x]) for x in random_qkv())
    ids = jnp.asarray(np.arange(256) // np.array([[100], [30]]), jnp.int32)

    def batched(attend: Callable[..., Any]) -> jax.Array:
        def one(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
            return attend(q, k, v, mask=CAUSAL, segment_ids=SegmentIds(ids, ids))

        return jax.vmap(one)(q, k, v, ids)

    with pltpu.force_tpu_interpret_mode(True):
        actual = batched(partial(splash_attention, block_sizes=SMALL))
    assert error_of(actual, batched(splash_attention_reference)) <= 1e-5


@pytest.mark.slow
def test_large_scores_do_not_overflow() -> None:
    q, k, v, _ = random_qkv()
    with pltpu.force_tpu_interpret_mode(True):
        out = splash_attention(q, k, v, mask=CAUSAL, sm_scale=1e4, block_sizes=SMALL)
    expected = splash_attention_reference(q, k, v, mask=CAUSAL, sm_scale=1e4)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_mask_that_was_processed_once_serves_many_calls() -> None:
    attend = make_splash_attention(NumpyMask(CAUSAL[:, :]))
    assert attend.block_sizes == BlockSizes.default(256, 256) == BlockSizes.same(256, 256)
    for info in (attend.forward_info, attend.dkv_info, attend.dq_info):
        np.testing.assert_array_equal(info.block_mask, [[[2]]])
    expected = partial(splash_attention_reference, mask=CAUSAL)
    with pltpu.force_tpu_interpret_mode(True):
        for q_heads, dtype in ((1, "float32"), (3, "float32")):
            q, k, v, _ = random_qkv(q_heads=q_heads, dtype=dtype)
            assert error_of(attend(q, k, v), expected(q, k, v)) <= 1e-5


@pytest.mark.parametrize(
    "size, block", [(128, 128), (512, 512), (640, 128), (768, 384), (1280, 256), (4096, 512)]
)
def test_default_blocks(size: int, block: int) -> None:
    assert BlockSizes.default(size, 4096) == BlockSizes.same(block, 512)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("spec", ["bf16_everything", "bf16_4k_gqa_causal"])
def test_lowers_for_tpu_as_three_kernels(spec: str, x64: bool) -> None:
    case = operation("splash_attention").spec(spec)

    def both(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, vjp = jax.vjp(partial(splash_attention, **case.kwargs), q, k, v)
        return out, vjp(out)

    with jax.enable_x64(x64):
        lowered = jax.jit(both).trace(*case.args).lower(lowering_platforms=("tpu",))
    text = lowered.as_text()
    for kernel in ("splash_attention", "splash_attention_dkv", "splash_attention_dq"):
        assert text.count(f'kernel_name = "{kernel}"') == 1


ONES = jnp.ones((2, 256, 64))
IDS = jnp.zeros(256, jnp.int32)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"q": ONES[0]},
            "q has shape (256, 64). It must have 3 dimensions: [num_q_heads, q_seq, head_dim].",
        ),
        (
            {"k": ONES[None]},
            "k has shape (1, 2, 256, 64). "
            "It must have 3 dimensions: [num_kv_heads, kv_seq, head_dim].",
        ),
        (
            {"v": ONES[:, :0]},
            "v has shape (2, 0, 64). "
            "Each dimension of [num_kv_heads, kv_seq, head_dim] must be at least 1.",
        ),
        ({"k": ONES[:, :, :32]}, "k has head_dim 32. It must be 64, that of q."),
        ({"v": ONES[:1]}, "v has shape (1, 256, 64). It must be (2, 256, 64), the shape of k."),
        (
            {"q": jnp.ones((3, 256, 64))},
            "q has 3 heads. It must have a multiple of 2, the heads of k and v.",
        ),
        (
            {"q": ONES.astype("float16")},
            "q has dtype float16. It must be float32 or bfloat16.",
        ),
        (
            {"k": ONES.astype("bfloat16")},
            "k has dtype bfloat16. It must be float32, the dtype of q.",
        ),
        (
            {"v": ONES.astype("bfloat16")},
            "v has dtype bfloat16. It must be float32, the dtype of q.",
        ),
        (
            {"mask": "causal"},
            "mask is a str. It must be a Mask, a MultiHeadMask, or a bool array.",
        ),
        ({"mask": np.ones(SHAPE, np.int8)}, "mask has dtype int8. It must be bool."),
        ({"mask": jnp.ones(SHAPE)}, "mask has dtype float32. It must be bool."),
        (
            {"mask": np.ones((1, 1, *SHAPE), bool)},
            "mask has shape (1, 1, 256, 256). "
            "It must be [q_seq, kv_seq] or [num_q_heads, q_seq, kv_seq], not empty.",
        ),
        (
            {"mask": jnp.ones((0, 256), bool)},
            "mask has shape (0, 256). "
            "It must be [q_seq, kv_seq] or [num_q_heads, q_seq, kv_seq], not empty.",
        ),
        (
            {"mask": CausalMask((256, 128))},
            "mask has shape (256, 128). It must be (256, 256), (q_seq, kv_seq).",
        ),
        (
            {"mask": jnp.ones((128, 256), bool)},
            "mask has shape (128, 256). It must be (256, 256), (q_seq, kv_seq).",
        ),
        (
            {"mask": MultiHeadMask([CAUSAL])},
            "mask has shape (1, 256, 256). It must be (2, 256, 256), (num_q_heads, q_seq, kv_seq).",
        ),
        (
            {"mask": ~FullMask(SHAPE)},
            "mask is empty. It must have a visible entry: some query must see some key.",
        ),
        (
            {"mask": np.zeros((2, *SHAPE), bool)},
            "mask is empty. It must have a visible entry: some query must see some key.",
        ),
        (
            {"segment_ids": (IDS,)},
            "segment_ids is a tuple. It must be SegmentIds(q, kv) or None.",
        ),
        (
            {"segment_ids": SegmentIds(q=IDS[:100], kv=IDS)},
            "segment_ids.q has shape (100,). It must be (256,), that is (q_seq,).",
        ),
        (
            {"segment_ids": SegmentIds(q=IDS, kv=IDS[None])},
            "segment_ids.kv has shape (1, 256). It must be (256,), that is (kv_seq,).",
        ),
        (
            {"segment_ids": SegmentIds(q=IDS, kv=IDS.astype("float32"))},
            "segment_ids.kv has dtype float32. It must be int32.",
        ),
        ({"sm_scale": float("nan")}, "sm_scale is nan. It must be a finite number."),
        ({"sm_scale": None}, "sm_scale is None. It must be a finite number."),
        (
            {"attn_logits_soft_cap": 0.0},
            "attn_logits_soft_cap is 0.0. It must be a positive number, or None for no cap.",
        ),
        (
            {"attn_logits_soft_cap": "1"},
            "attn_logits_soft_cap is '1'. It must be a positive number, or None for no cap.",
        ),
        ({"block_sizes": 128}, "block_sizes is 128. It must be BlockSizes or None."),
        (
            {"block_sizes": BlockSizes.same(384, 128)},
            "block_q is 384. It must divide q_seq, which is 256.",
        ),
        (
            {"block_sizes": BlockSizes.same(128, 512)},
            "block_kv is 512. It must divide kv_seq, which is 256.",
        ),
        (
            {"q": jnp.ones((2, 200, 64)), "mask": CausalMask((200, 256))},
            "q_seq is 200. It must be a multiple of 128, "
            "so that a block divides it: pad the sequence, and mask the padding.",
        ),
    ],
)
def test_errors(change: dict[str, Any], message: str) -> None:
    arguments = {"q": ONES, "k": ONES, "v": ONES, "mask": CAUSAL, **change}
    with pytest.raises(ValueError) as error:
        splash_attention(**arguments)
    assert str(error.value) == f"splash_attention: {message}"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_q": 64}, "block_q is 64. It must be an int, a positive multiple of 128."),
        (
            {"block_kv_dq": 0},
            "block_kv_dq is 0. It must be an int, a positive multiple of 128.",
        ),
        (
            {"block_q_dkv": 128.0},
            "block_q_dkv is 128.0. It must be an int, a positive multiple of 128.",
        ),
        (
            {"block_kv_compute": 256},
            "block_kv_compute is 256. It must divide block_kv, which is 128.",
        ),
        (
            {"block_kv_dkv": 384, "block_kv_dkv_compute": 256},
            "block_kv_dkv_compute is 256. It must divide block_kv_dkv, which is 384.",
        ),
    ],
)
def test_block_size_errors(change: dict[str, Any], message: str) -> None:
    sizes = dict.fromkeys(BlockSizes.__dataclass_fields__, 128)
    with pytest.raises(ValueError) as error:
        BlockSizes(**{**sizes, **change})
    assert str(error.value) == f"BlockSizes: {message}"
