"""Errors of `matmul`, and its behaviour past the end of k."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import matmul


def message_of(x: object, y: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        matmul(x, y, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    "x_shape, y_shape, message",
    [
        ((3,), (3, 4), "x has shape (3,). It must have 2 dimensions: [m, k]."),
        ((2, 3), (3,), "y has shape (3,). It must have 2 dimensions: [k, n]."),
        ((2, 0), (0, 4), "x has shape (2, 0). Each dimension of [m, k] must be at least 1."),
        ((2, 3), (3, 0), "y has shape (3, 0). Each dimension of [k, n] must be at least 1."),
        (
            (2, 3),
            (4, 5),
            "y has shape (4, 5). Its first dimension must be 3, the last one of x.",
        ),
    ],
)
def test_shape(x_shape: tuple[int, ...], y_shape: tuple[int, ...], message: str) -> None:
    assert message_of(jnp.ones(x_shape), jnp.ones(y_shape)) == f"matmul: {message}"


@pytest.mark.parametrize(
    "x_dtype, y_dtype, message",
    [
        ("int32", "int32", "x has dtype int32. It must be float32, bfloat16 or int8."),
        ("bfloat16", "float32", "y has dtype float32. It must be bfloat16, the dtype of x."),
    ],
)
def test_dtype(x_dtype: str, y_dtype: str, message: str) -> None:
    x, y = jnp.ones((8, 8), x_dtype), jnp.ones((8, 8), y_dtype)
    assert message_of(x, y) == f"matmul: {message}"


@pytest.mark.parametrize(
    "dtype, activation, message",
    [
        (
            "float32",
            "tanh",
            "activation is 'tanh'. It must be None, 'relu', 'silu' or 'gelu'.",
        ),
        ("int8", "gelu", "activation is 'gelu'. It must be None or 'relu' for int8."),
    ],
)
def test_activation(dtype: str, activation: str, message: str) -> None:
    x = jnp.ones((8, 8), dtype)
    assert message_of(x, x, activation=activation) == f"matmul: {message}"


@pytest.mark.parametrize(
    "dtype, name, block, message",
    [
        (
            "float32",
            "block_m",
            20,
            "It must be a positive multiple of 8, or at least m, which is 300. Try block_m=16.",
        ),
        (
            "bfloat16",
            "block_m",
            40,
            "It must be a positive multiple of 16, or at least m, which is 300. Try block_m=32.",
        ),
        (
            "int8",
            "block_m",
            16,
            "It must be a positive multiple of 32, or at least m, which is 300. Try block_m=32.",
        ),
        (
            "float32",
            "block_n",
            299,
            "It must be a positive multiple of 128, or at least n, which is 400. Try block_n=256.",
        ),
        (
            "float32",
            "block_k",
            0,
            "It must be a positive multiple of 128, or at least k, which is 500. Try block_k=128.",
        ),
        ("float32", "block_k", None, "It must be an int."),
    ],
)
def test_block(dtype: str, name: str, block: object, message: str) -> None:
    x, y = jnp.ones((300, 500), dtype), jnp.ones((500, 400), dtype)
    assert message_of(x, y, **{name: block}) == f"matmul: {name} is {block}. {message}"


def test_blocks_larger_than_the_matrices_span_them() -> None:
    x, y = jnp.ones((3, 5)), jnp.ones((5, 4))
    with pltpu.force_tpu_interpret_mode(True):
        out = matmul(x, y, block_m=7, block_n=9, block_k=11)
    np.testing.assert_array_equal(out, np.full((3, 4), 5.0))
