"""Errors of `layer_norm`, and the rows past the end of a block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import layer_norm


def message_of(x: object, weight: object, bias: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        layer_norm(x, weight, bias, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((4,), (4,), (4,)), "x has shape (4,). It must have 2 dimensions: [rows, features]."),
        (
            ((0, 4), (4,), (4,)),
            "x has shape (0, 4). Each dimension of [rows, features] must be at least 1.",
        ),
        (
            ((2, 4), (1, 4), (4,)),
            "weight has shape (1, 4). It must have 1 dimension: [features].",
        ),
        (
            ((2, 4), (3,), (4,)),
            "weight has shape (3,). It must be (4,), the last dimension of x.",
        ),
        (((2, 4), (4,), (5,)), "bias has shape (5,). It must be (4,), the last dimension of x."),
    ],
)
def test_shape(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    assert message_of(*map(jnp.ones, shapes)) == f"layer_norm: {message}"


@pytest.mark.parametrize(
    "dtypes, message",
    [
        (["int32", "float32", "float32"], "x has dtype int32. It must be float32 or bfloat16."),
        (
            ["float32", "float16", "float32"],
            "weight has dtype float16. It must be float32 or bfloat16.",
        ),
        (["float32", "float32", "int8"], "bias has dtype int8. It must be float32 or bfloat16."),
    ],
)
def test_dtype(dtypes: list[str], message: str) -> None:
    arrays = [
        jnp.ones(shape, dtype) for shape, dtype in zip([(8, 4), (4,), (4,)], dtypes, strict=True)
    ]
    assert message_of(*arrays) == f"layer_norm: {message}"


@pytest.mark.parametrize("eps", [-1.0, float("nan"), float("inf"), "1"])
def test_eps(eps: object) -> None:
    message = message_of(jnp.ones((8, 4)), jnp.ones(4), jnp.ones(4), eps=eps)
    assert message == f"layer_norm: eps is {eps!r}. It must be a finite number, at least 0."


@pytest.mark.parametrize(
    "block, message",
    [
        (
            20,
            "It must be a positive multiple of 16, or at least rows, which is 64. "
            "Try block_rows=16.",
        ),
        ("16", "It must be an int."),
    ],
)
def test_block(block: object, message: str) -> None:
    arrays = [jnp.ones(shape, jnp.bfloat16) for shape in ((64, 4), (4,), (4,))]
    expected = f"layer_norm: block_rows is {block!r}. {message}"
    assert message_of(*arrays, block_rows=block) == expected


@pytest.mark.slow
def test_what_lies_past_the_last_row_reaches_no_gradient() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((9, 128), np.float32))
    ones = jnp.ones(128)

    def total(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return layer_norm(x, weight, bias, block_rows=8).sum()

    # Uninitialized memory, and with it the 7 rows past the end, is NaN in this mode.
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        gradients = jax.grad(total, argnums=(0, 1, 2))(x, ones, ones)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_allclose(gradients[2], 9.0)
