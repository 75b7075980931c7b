"""Extreme values of `softmax`."""

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import softmax


def test_extremes() -> None:
    x = jnp.array([[1e30, 0.0, -1e30], [-jnp.inf, 3.0, 3.0]])
    with pltpu.force_tpu_interpret_mode(True):
        out = softmax(x)
    np.testing.assert_array_equal(out, [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
