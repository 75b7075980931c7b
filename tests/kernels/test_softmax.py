"""Errors of `softmax`, and extreme values."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import softmax


def message_of(x: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        softmax(x, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    "shape, message",
    [
        ((), "x has shape (). It must have at least 1 dimension: [..., features]."),
        ((3, 0), "x has shape (3, 0). Each dimension of [..., features] must be at least 1."),
    ],
)
def test_shape(shape: tuple[int, ...], message: str) -> None:
    assert message_of(jnp.ones(shape)) == f"softmax: {message}"


def test_dtype() -> None:
    expected = "softmax: x has dtype int32. It must be float32 or bfloat16."
    assert message_of(jnp.ones((8, 8), jnp.int32)) == expected


@pytest.mark.parametrize(
    "block, message",
    [
        (
            -8,
            "It must be a positive multiple of 8, or at least the number of rows, which is 32. "
            "Try block_rows=8.",
        ),
        (8.0, "It must be an int."),
    ],
)
def test_block(block: object, message: str) -> None:
    expected = f"softmax: block_rows is {block}. {message}"
    assert message_of(jnp.ones((2, 16, 8)), block_rows=block) == expected


def test_extremes() -> None:
    x = jnp.array([[1e30, 0.0, -1e30], [-jnp.inf, 3.0, 3.0]])
    with pltpu.force_tpu_interpret_mode(True):
        out = softmax(x)
    np.testing.assert_array_equal(out, [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
