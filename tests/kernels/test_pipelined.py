"""Errors of `dma_copy`, and its DMAs: no races, and every one is waited for."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import dma_copy, operation


@pytest.fixture(autouse=True)
def _fresh_interpreter() -> Iterator[None]:
    yield
    pltpu.reset_tpu_interpret_mode_state()


def message_of(x: jax.Array, **kwargs: Any) -> str:
    with pytest.raises(ValueError) as error:
        dma_copy(x, **kwargs)
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "on_wait"])
def test_no_race_and_no_semaphore_left_over(
    execution: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    op = operation("dma_copy")
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
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        copied = dma_copy(x, block_rows=8)
    np.testing.assert_array_equal(copied, x)


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
def test_arguments(
    shape: tuple[int, ...],
    dtype: str,
    kwargs: dict[str, object],
    message: str,
) -> None:
    assert message_of(jnp.ones(shape, dtype), **kwargs) == f"dma_copy: {message}"


@pytest.mark.parametrize(
    "rows, block_rows, try_", [(70, 32, 70), (96, 64, 48), (72, 48, 24), (80, 64, 40)]
)
def test_it_takes_whole_blocks(rows: int, block_rows: int, try_: int) -> None:
    assert message_of(jnp.ones((rows, 128)), block_rows=block_rows) == (
        f"dma_copy: block_rows is {block_rows}. It must divide rows, which is {rows}. "
        f"Try block_rows={try_}."
    )
