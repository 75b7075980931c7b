"""DMAs of `dma_copy`: no races, and every one is waited for."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import dma_copy


@pytest.fixture(autouse=True)
def _fresh_interpreter() -> Iterator[None]:
    yield
    pltpu.reset_tpu_interpret_mode_state()


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_every_number_of_steps(steps: int) -> None:
    x = jnp.arange(steps * 8 * 128, dtype=jnp.float32).reshape(-1, 128)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        copied = dma_copy(x, block_rows=8)
    np.testing.assert_array_equal(copied, x)
