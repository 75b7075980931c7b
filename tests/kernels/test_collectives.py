"""`all_gather` on several devices."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from pallas_debug_kernels import all_gather

RING = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))


@pytest.fixture(autouse=True)
def _fresh_interpreter() -> Iterator[None]:
    yield
    pltpu.reset_tpu_interpret_mode_state()


def rows(count: int) -> jax.Array:
    return jnp.arange(count * 128, dtype=jnp.float32).reshape(count, 128)


@pytest.mark.parametrize("execution", ["eager", "on_wait"])
def test_no_race_and_no_semaphore_left_over(
    execution: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    # Many clocks: jax lets copies share them at random, and races between sharers go unseen.
    params = pltpu.InterpretParams(
        detect_races=True, vector_clock_size=1024, dma_execution_mode=execution
    )
    with pltpu.force_tpu_interpret_mode(params):
        jax.block_until_ready(all_gather(rows(32), mesh=RING))
    printed = capfd.readouterr()
    assert "RACE" not in printed.out + printed.err
    assert "emaphore" not in printed.out + printed.err


@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_a_ring_of_fewer_devices(num_devices: int) -> None:
    mesh = AbstractMesh((num_devices,), ("ring",), axis_types=(AxisType.Auto,))
    x = rows(24)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        out = jax.block_until_ready(all_gather(x, mesh=mesh, axis_name="ring"))
    np.testing.assert_array_equal(out, x)
