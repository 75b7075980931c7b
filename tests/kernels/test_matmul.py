"""`matmul` with blocks larger than its matrices."""

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import matmul


def test_blocks_larger_than_the_matrices_span_them() -> None:
    x, y = jnp.ones((3, 5)), jnp.ones((5, 4))
    with pltpu.force_tpu_interpret_mode(True):
        out = matmul(x, y, block_m=7, block_n=9, block_k=11)
    np.testing.assert_array_equal(out, np.full((3, 4), 5.0))
