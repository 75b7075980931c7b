"""Generated arguments, and comparison of results."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import trace
from pallas_debug.compiler.targets import resolve_all


def test_only_what_is_abstract_is_made_up() -> None:
    given = jnp.arange(3)
    floats = jax.ShapeDtypeStruct((64,), "bfloat16")
    args, kwargs = arrays.concrete([given, 128, floats], {"flag": True, "x": floats})
    assert args[0] is given
    assert (args[1], kwargs["flag"]) == (128, True)
    assert args[2].dtype == jnp.bfloat16
    assert float(jnp.std(args[2].astype("float32"))) > 0.5
    again, _ = arrays.concrete([given, 128, floats], {"flag": True, "x": floats})
    np.testing.assert_array_equal(args[2], again[2])


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_what_may_be_an_index_is_zero(dtype: str) -> None:
    (array,), _ = arrays.concrete([jax.ShapeDtypeStruct((4,), dtype)], {})
    assert not array.any()
    assert str(array.dtype) == dtype


@pytest.mark.parametrize(
    "dtype, least, most", [("int8", -128, 127), ("uint8", 0, 255), ("int4", -8, 7), ("bool", 0, 1)]
)
def test_matrices_of_narrow_integers_are_data(dtype: str, least: int, most: int) -> None:
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((16, 128), (8, 8), (1024,))]
    (matrix, table, row), _ = arrays.concrete(shapes, {})
    assert str(matrix.dtype) == dtype
    wide = np.asarray(matrix).astype(np.int32)
    assert (wide.min(), wide.max()) == (least, most)
    assert not np.asarray(table).any()
    assert not np.asarray(row).any()
    leaves = arrays.abstract_leaves(shapes, {})
    assert [leaf.values for leaf in leaves] == ["random", "zeros", "zeros"]
    assert all(leaf.may_be_index for leaf in leaves)


def test_results_are_identical_bit_for_bit() -> None:
    one = {"a": jnp.array([1.0, jnp.nan]), "b": jnp.zeros(4), "key": jax.random.key(0)}
    assert arrays.are_identical(one, {**one, "b": jnp.zeros(4)})
    for name, other in (
        ("a", jnp.array([1.0, 0.0])),
        ("b", jnp.zeros(4).at[2].set(-0.0)),
        ("key", jax.random.key(1)),
    ):
        assert not arrays.are_identical(one, {**one, name: other})
    assert not arrays.are_identical(one, one["a"])


def test_arrays_that_jax_narrows_are_traced_without_a_warning() -> None:
    """jax 0.12 warns of int64 in a `ShapeDtypeStruct`, which the caller did not write."""
    (target,) = resolve_all("v5e")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxpr, *_ = trace.jaxpr_of(lambda x: x * 2, (np.ones((3,), np.int64),), {}, target)
    assert [str(v.aval.dtype) for v in jaxpr.outvars] == ["int32"]
