"""DMAs of `dma_copy`: no races, and every one is waited for."""

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
