"""Errors of `reduction`, and accumulation in the output block."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import reduction


def message_of(x: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        reduction(x, **kwargs)
    return str(error.value)


@pytest.mark.parametrize(
    "shape, message",
    [
        ((3,), "x has shape (3,). It must have 2 dimensions: [rows, cols]."),
        ((3, 0), "x has shape (3, 0). Each dimension of [rows, cols] must be at least 1."),
    ],
)
def test_shape(shape: tuple[int, ...], message: str) -> None:
    assert message_of(jnp.ones(shape)) == f"reduction: {message}"


@pytest.mark.parametrize(
    "dtype, kwargs, message",
    [
        ("int8", {}, "x has dtype int8. It must be float32, bfloat16 or int32."),
        ("float32", {"kind": "min"}, "kind is 'min'. It must be 'sum' or 'max'."),
        ("float32", {"axis": 2}, "axis is 2. It must be 0 or 1."),
        ("float32", {"axis": -1}, "axis is -1. It must be 0 or 1."),
        ("float32", {"axis": None}, "axis is None. It must be 0 or 1."),
        ("float32", {"axis": True}, "axis is True. It must be 0 or 1."),
        (
            "bfloat16",
            {"block_rows": 8},
            "block_rows is 8. It must be a positive multiple of 16, or at least rows, "
            "which is 300. Try block_rows=16.",
        ),
        (
            "float32",
            {"block_cols": 200},
            "block_cols is 200. It must be a positive multiple of 128, or at least cols, "
            "which is 400. Try block_cols=128.",
        ),
        ("float32", {"block_cols": None}, "block_cols is None. It must be an int."),
    ],
)
def test_arguments(dtype: str, kwargs: dict[str, object], message: str) -> None:
    assert message_of(jnp.ones((300, 400), dtype), **kwargs) == f"reduction: {message}"


@pytest.mark.parametrize("axis", [0, 1])
def test_bfloat16_is_summed_in_float32(axis: int) -> None:
    x = jnp.ones((1024, 1024), jnp.bfloat16)  # in bfloat16 a sum of ones stays at 256
    with pltpu.force_tpu_interpret_mode(True):
        out = reduction(x, axis=axis, block_rows=256, block_cols=256)
    np.testing.assert_array_equal(np.asarray(out, np.float32), 1024.0)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_padding_of_a_ragged_block_is_no_maximum(axis: int) -> None:
    x = jnp.full((20, 200), -5, jnp.int32)
    with pltpu.force_tpu_interpret_mode(True):
        out = reduction(x, kind="max", axis=axis, block_rows=16, block_cols=128)
    np.testing.assert_array_equal(out, -5)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_nan_stays_nan(kind: str) -> None:
    x = jnp.zeros((16, 256)).at[3, 200].set(jnp.nan)
    with pltpu.force_tpu_interpret_mode(True):
        out = reduction(x, kind=kind, axis=1, block_cols=128)
    assert np.flatnonzero(np.isnan(out)).tolist() == [3]
