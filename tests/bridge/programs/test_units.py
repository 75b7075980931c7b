"""Primitives that a unit evaluates in another way than jax."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from pallas_debug.bridge.jaxprs.nested import JaxprValues
from pallas_debug.bridge.programs import units


def evaluated(jaxpr: jax.extend.core.ClosedJaxpr, *values: np.ndarray) -> np.ndarray:
    known = JaxprValues(jaxpr.jaxpr.invars, values)
    for eqn in jaxpr.jaxpr.eqns:
        known.bind(eqn.outvars, units.bound(eqn, known.read(eqn.invars)))
    (result,) = known.read(jaxpr.jaxpr.outvars)
    return np.asarray(result)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, ml_dtypes.bfloat16])
@pytest.mark.parametrize("reps", [(1, 4), (3, 2), (2, 0), (1, 1), (2, units.MAX_COPIES + 1)])
def test_a_tiled_array_is_the_same_as_that_of_numpy(reps: tuple[int, int], dtype: type) -> None:
    x = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    jaxpr = jax.make_jaxpr(lambda x: lax.tile(x, reps))(x)
    assert [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns] == ["tile"]
    found = evaluated(jaxpr, x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.tile(x, reps))


@pytest.mark.parametrize("reps, is_reshaped", [((1, 4), False), ((1, units.MAX_COPIES + 1), True)])
def test_tiling_a_few_times_needs_no_reshape(reps: tuple[int, int], is_reshaped: bool) -> None:
    x = np.ones((8, 128), np.float32)
    jaxpr = jax.make_jaxpr(lambda x: lax.tile(x, reps))(x)
    (eqn,) = jaxpr.jaxpr.eqns
    text = jax.jit(lambda x: units.bound(eqn, [x])).lower(x).as_text()
    assert ("reshape" in text) == is_reshaped
