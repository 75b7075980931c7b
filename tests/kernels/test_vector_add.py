"""Errors of `vector_add`."""

import jax.numpy as jnp
import pytest
from pallas_debug_kernels import vector_add


@pytest.mark.parametrize(
    "x_shape, y_shape, message",
    [
        ((2, 3), (3,), "x has shape (2, 3). It must have 1 dimension: [n]."),
        ((3,), (), "y has shape (). It must have 1 dimension: [n]."),
        ((0,), (0,), "x has shape (0,). Each dimension of [n] must be at least 1."),
        ((3,), (4,), "y has shape (4,). It must be (3,), the shape of x."),
    ],
)
def test_shape(x_shape: tuple[int, ...], y_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError) as error:
        vector_add(jnp.ones(x_shape), jnp.ones(y_shape))
    assert str(error.value) == f"vector_add: {message}"


@pytest.mark.parametrize(
    "x_dtype, y_dtype, message",
    [
        ("float16", "float16", "x has dtype float16. It must be float32, bfloat16 or int32."),
        ("float32", "int32", "y has dtype int32. It must be float32, the dtype of x."),
    ],
)
def test_dtype(x_dtype: str, y_dtype: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        vector_add(jnp.ones(8, x_dtype), jnp.ones(8, y_dtype))
    assert str(error.value) == f"vector_add: {message}"


@pytest.mark.parametrize(
    "dtype, block_size, message",
    [
        (
            "float32",
            1500,
            "block_size is 1500. It must be a positive multiple of 1024, or at least n, "
            "which is 5000. Try block_size=1024.",
        ),
        (
            "bfloat16",
            4097,
            "block_size is 4097. It must be a positive multiple of 2048, or at least n, "
            "which is 5000. Try block_size=4096.",
        ),
        (
            "int32",
            -1024,
            "block_size is -1024. It must be a positive multiple of 1024, or at least n, "
            "which is 5000. Try block_size=1024.",
        ),
        ("float32", 1024.0, "block_size is 1024.0. It must be an int."),
        ("float32", True, "block_size is True. It must be an int."),
    ],
)
def test_block_size(dtype: str, block_size: int, message: str) -> None:
    x = jnp.ones(5000, dtype)
    with pytest.raises(ValueError) as error:
        vector_add(x, x, block_size=block_size)
    assert str(error.value) == f"vector_add: {message}"
