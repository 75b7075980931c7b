"""`paged_attention`: data that a sequence does not reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import operation, paged_attention


def random_pages() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = (2, 4, 64), (2, 8, 16, 64), (2, 8, 16, 64)
    return tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for shape in shapes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, pltpu.InterpretParams()], ids=["hlo", "tpu"])
def test_what_a_sequence_does_not_reach_may_hold_anything(mode: object) -> None:
    q, k, v = random_pages()
    lengths = jnp.array([20, 0])
    table = jnp.array([[5, 2, 0, 0], [0, 0, 0, 0]])
    expected = operation("paged_attention").reference(q, k, v, lengths, table)
    # Page 2 is used up to position 4, all others but 5 not at all; the table points nowhere.
    spoiled = [x.at[:, 2, 4:].set(jnp.nan).at[:, jnp.array([0, 1, 3, 4, 6, 7])].set(jnp.nan)
               for x in (k, v)]  # fmt: skip
    nowhere = jnp.array([[5, 2, 10**6, -1], [-1, 10**6, -1, -1]])
    try:
        with pltpu.force_tpu_interpret_mode(mode):
            out = np.asarray(paged_attention(q, *spoiled, lengths, nowhere))
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[1], 0.0)
