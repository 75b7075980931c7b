"""Rows past the end of a block of `layer_norm`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import layer_norm


@pytest.mark.slow
def test_what_lies_past_the_last_row_reaches_no_gradient() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((9, 128), np.float32))
    ones = jnp.ones(128)

    def total(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return layer_norm(x, weight, bias, block_rows=8).sum()

    # Uninitialized memory, and with it the 7 rows past the end, is NaN in this mode.
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
        gradients = jax.grad(total, argnums=(0, 1, 2))(x, ones, ones)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_allclose(gradients[2], 9.0)
