"""Errors of `paged_attention`, and data that a sequence does not reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import operation, paged_attention

GOOD = {
    "q": ((2, 4, 64), "float32"),
    "k_pages": ((2, 8, 16, 64), "float32"),
    "v_pages": ((2, 8, 16, 64), "float32"),
    "lengths": ((2,), "int32"),
    "page_table": ((2, 4), "int32"),
}
PAGES = "[num_kv_heads, num_pages, page_size, head_dim]"


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"q": ((4, 64), "float32")},
            "q has shape (4, 64). It must have 3 dimensions: [batch, num_q_heads, head_dim].",
        ),
        (
            {"k_pages": ((8, 16, 64), "float32")},
            f"k_pages has shape (8, 16, 64). It must have 4 dimensions: {PAGES}.",
        ),
        (
            {"v_pages": ((2, 0, 16, 64), "float32")},
            f"v_pages has shape (2, 0, 16, 64). Each dimension of {PAGES} must be at least 1.",
        ),
        (
            {"q": ((2, 4, 32), "float32")},
            "k_pages has shape (2, 8, 16, 64). Its last dimension must be 32, the head_dim of q.",
        ),
        (
            {"v_pages": ((2, 9, 16, 64), "float32")},
            "v_pages has shape (2, 9, 16, 64). It must be (2, 8, 16, 64), the shape of k_pages.",
        ),
        (
            {"q": ((2, 3, 64), "float32")},
            "q has 3 heads. It must have a multiple of 2, the num_kv_heads of k_pages.",
        ),
        (
            {"q": ((2, 4, 64), "float16")},
            "q has dtype float16. It must be float32 or bfloat16.",
        ),
        (
            {"k_pages": ((2, 8, 16, 64), "bfloat16")},
            "k_pages has dtype bfloat16. It must be float32, the dtype of q.",
        ),
        (
            {"v_pages": ((2, 8, 16, 64), "int8")},
            "v_pages has dtype int8. It must be float32, the dtype of q.",
        ),
        (
            {
                "k_pages": ((2, 8, 12, 64), "float32"),
                "v_pages": ((2, 8, 12, 64), "float32"),
            },
            "k_pages has page_size 12. It must be a multiple of 8 for float32.",
        ),
        (
            {"lengths": ((2, 1), "int32")},
            "lengths has shape (2, 1). It must have 1 dimension: [batch].",
        ),
        ({"lengths": ((3,), "int32")}, "lengths has shape (3,). It must be (2,), the batch of q."),
        ({"lengths": ((2,), "float32")}, "lengths has dtype float32. It must be int32."),
        (
            {"page_table": ((8,), "int32")},
            "page_table has shape (8,). It must have 2 dimensions: [batch, pages_per_seq].",
        ),
        (
            {"page_table": ((3, 4), "int32")},
            "page_table has shape (3, 4). Its first dimension must be 2, the batch of q.",
        ),
        ({"page_table": ((2, 4), "int8")}, "page_table has dtype int8. It must be int32."),
    ],
)
def test_arrays(changes: dict[str, tuple[tuple[int, ...], str]], message: str) -> None:
    arrays = {name: jnp.zeros(*changes.get(name, good)) for name, good in GOOD.items()}
    with pytest.raises(ValueError) as error:
        paged_attention(**arrays)
    assert str(error.value) == f"paged_attention: {message}"


@pytest.mark.parametrize("sm_scale", [float("nan"), "1"])
def test_sm_scale(sm_scale: object) -> None:
    arrays = {name: jnp.zeros(*good) for name, good in GOOD.items()}
    with pytest.raises(ValueError) as error:
        paged_attention(**arrays, sm_scale=sm_scale)
    expected = f"paged_attention: sm_scale is {sm_scale!r}. It must be a finite number."
    assert str(error.value) == expected


def random_pages() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = [GOOD[name][0] for name in ("q", "k_pages", "v_pages")]
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, pltpu.InterpretParams()], ids=["hlo", "tpu"])
def test_what_a_sequence_does_not_reach_may_hold_anything(mode: object) -> None:
    q, k, v = random_pages()
    lengths = jnp.array([20, 0])
    table = jnp.array([[5, 2, 0, 0], [0, 0, 0, 0]])
    expected = operation("paged_attention").reference(q, k, v, lengths, table)
    # Page 2 is used up to position 4, all others but 5 not at all; the table points nowhere.
    spoiled = [x.at[:, 2, 4:].set(jnp.nan).at[:, jnp.array([0, 1, 3, 4, 6, 7])].set(jnp.nan)
               for x in (k, v)]  # fmt: skip
    nowhere = jnp.array([[5, 2, 10**6, -1], [-1, 10**6, -1, -1]])
    try:
        with pltpu.force_tpu_interpret_mode(mode):
            out = np.asarray(paged_attention(q, *spoiled, lengths, nowhere))
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[1], 0.0)


@pytest.mark.slow
def test_large_scores_do_not_overflow() -> None:
    q, k, v = random_pages()
    lengths, table = jnp.array([60, 33]), jnp.arange(8).reshape(2, 4)
    with pltpu.force_tpu_interpret_mode(True):
        out = paged_attention(q, k, v, lengths, table, sm_scale=1e4)
    expected = operation("paged_attention").reference(q, k, v, lengths, table, sm_scale=1e4)
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)
