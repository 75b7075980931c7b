"""Errors of the pipelined kernels, and their DMAs: no races, and every one is waited for."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import (
    dma_copy,
    dma_matmul,
    operation,
    pipelined_copy,
    pipelined_matmul,
)

COPIES = [dma_copy, pipelined_copy]
MATMULS = [dma_matmul, pipelined_matmul]


@pytest.fixture(autouse=True)
def _fresh_interpreter() -> Iterator[None]:
    yield
    pltpu.reset_tpu_interpret_mode_state()


def message_of(function: Callable[..., Any], *args: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as error:
        function(*args, **kwargs)
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "on_wait"])
@pytest.mark.parametrize("name", [f.__name__ for f in (*COPIES, *MATMULS)])
def test_no_race_and_no_semaphore_left_over(
    name: str, execution: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    op = operation(name)
    spec = op.spec("f32")
    args = spec.make_args()
    # Many clocks: jax lets copies share them at random, and races between sharers go unseen.
    params = pltpu.InterpretParams(
        detect_races=True, vector_clock_size=1024, dma_execution_mode=execution
    )
    with pltpu.force_tpu_interpret_mode(params):
        out = jax.block_until_ready(op.function(*args, **spec.kwargs))
    np.testing.assert_allclose(out, op.reference(*args, **spec.kwargs), rtol=1e-4, atol=1e-4)
    # A race (0.10) and a semaphore that is not zero at the end are printed.
    printed = capfd.readouterr()
    assert "RACE" not in printed.out + printed.err
    assert "emaphore" not in printed.out + printed.err


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_every_number_of_steps(steps: int) -> None:
    x = jnp.arange(steps * 8 * 128, dtype=jnp.float32).reshape(-1, 128)
    y = jnp.ones((steps * 128, 128))
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        copied = dma_copy(x, block_rows=8)
        product = dma_matmul(jnp.ones((8, steps * 128)), y, block_k=128)
    np.testing.assert_array_equal(copied, x)
    np.testing.assert_array_equal(product, steps * 128.0)


@pytest.mark.parametrize("function", COPIES)
@pytest.mark.parametrize(
    "shape, dtype, kwargs, message",
    [
        ((3,), "float32", {}, "x has shape (3,). It must have 2 dimensions: [rows, cols]."),
        (
            (0, 3),
            "float32",
            {},
            "x has shape (0, 3). Each dimension of [rows, cols] must be at least 1.",
        ),
        (
            (8, 8),
            "int8",
            {},
            "x has dtype int8. It must be float32, bfloat16 or int32.",
        ),
        (
            (64, 128),
            "bfloat16",
            {"block_rows": 24},
            "block_rows is 24. It must be a positive multiple of 16, or at least rows, "
            "which is 64. Try block_rows=16.",
        ),
        ((64, 128), "float32", {"block_rows": 8.0}, "block_rows is 8.0. It must be an int."),
    ],
)
def test_arguments_of_the_copies(
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: str,
    kwargs: dict[str, object],
    message: str,
) -> None:
    actual = message_of(function, jnp.ones(shape, dtype), **kwargs)
    assert actual == f"{function.__name__}: {message}"


@pytest.mark.parametrize("function", COPIES)
@pytest.mark.parametrize(
    "rows, block_rows, try_", [(70, 32, 70), (96, 64, 48), (72, 48, 24), (80, 64, 40)]
)
def test_the_copies_take_whole_blocks(
    function: Callable[..., Any], rows: int, block_rows: int, try_: int
) -> None:
    assert message_of(function, jnp.ones((rows, 128)), block_rows=block_rows) == (
        f"{function.__name__}: block_rows is {block_rows}. It must divide rows, which is {rows}. "
        f"Try block_rows={try_}."
    )


@pytest.mark.parametrize("function", MATMULS)
@pytest.mark.parametrize(
    "x_shape, y_shape, dtypes, kwargs, message",
    [
        (
            (3,),
            (3, 4),
            ("float32",) * 2,
            {},
            "x has shape (3,). It must have 2 dimensions: [m, k].",
        ),
        (
            (2, 3),
            (3,),
            ("float32",) * 2,
            {},
            "y has shape (3,). It must have 2 dimensions: [k, n].",
        ),
        (
            (2, 3),
            (4, 5),
            ("float32",) * 2,
            {},
            "y has shape (4, 5). Its first dimension must be 3, the last one of x.",
        ),
        ((2, 3), (3, 5), ("int8",) * 2, {}, "x has dtype int8. It must be float32 or bfloat16."),
        (
            (2, 3),
            (3, 5),
            ("float32", "bfloat16"),
            {},
            "y has dtype bfloat16. It must be float32, the dtype of x.",
        ),
        (
            (64, 256),
            (256, 128),
            ("float32",) * 2,
            {"block_m": 4},
            "block_m is 4. It must be a positive multiple of 8, or at least m, which is 64. "
            "Try block_m=8.",
        ),
        (
            (64, 384),
            (384, 128),
            ("float32",) * 2,
            {"block_k": 256},
            "block_k is 256. It must divide k, which is 384. Try block_k=128.",
        ),
        (
            (64, 128),
            (128, 200),
            ("float32",) * 2,
            {"block_n": 128},
            "block_n is 128. It must divide n, which is 200. Try block_n=200.",
        ),
    ],
)
def test_arguments_of_the_products(
    function: Callable[..., Any],
    x_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    dtypes: tuple[str, str],
    kwargs: dict[str, object],
    message: str,
) -> None:
    x, y = jnp.ones(x_shape, dtypes[0]), jnp.ones(y_shape, dtypes[1])
    assert message_of(function, x, y, **kwargs) == f"{function.__name__}: {message}"
