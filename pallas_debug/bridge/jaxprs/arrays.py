"""Arrays as arguments and results: generation from shapes, and comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Difference:
    """First difference of two results, in the order of their arrays.

    Attributes:
      path: location of the array in the result, in jax's notation; empty for a single array.
    """

    path: str
    index: tuple[int, ...]
    first: str
    second: str


def dtype_named(name: str) -> Any:
    """Return the numpy dtype of this name, of jax's own dtypes too; None if there is none."""
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        return None
    # Without this, one-letter codes such as `x` and numpy's strings and objects would pass.
    return dtype if dtype.name == name and jnp.issubdtype(dtype, np.generic) else None


def shape_dtype(shape: Sequence[int], dtype: str) -> jax.ShapeDtypeStruct:
    """Return an abstract array."""
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))


def canonical(dtype: Any) -> Any:
    """Return the dtype that jax gives such values: int32 for int64 unless x64 is enabled."""
    return jax.dtypes.canonicalize_dtype(dtype)


def put(values: np.ndarray[Any, Any]) -> jax.Array:
    """Return a jax array of these values."""
    array: jax.Array = jnp.asarray(values, canonical(values.dtype))
    return array


def key(seed: int, *, is_raw: bool, is_abstract: bool) -> Any:
    """Return a PRNG key, or its type.

    Args:
      is_raw: whether it is an array of integers, as from `jax.random.PRNGKey`.
    """
    make = jax.random.PRNGKey if is_raw else jax.random.key
    return jax.eval_shape(make, seed) if is_abstract else make(seed)


def is_abstract(leaf: Any) -> bool:
    """Whether an argument is a shape and dtype without values."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def concrete(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, seed: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Replace abstract arguments with values.

    Floating-point arrays are standard normal. Integers and bools are zero: they are often indices,
    counts or offsets, for which other numbers might be invalid.

    Returns:
      The arguments, and whether any integers or bools were generated.
    """
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    is_made_up = any(is_abstract(x) and not jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves)
    filled = [_array(rng, leaf) if is_abstract(leaf) else leaf for leaf in leaves]
    made_args, made_kwargs = jax.tree.unflatten(tree, filled)
    return made_args, made_kwargs, is_made_up


def _array(rng: np.random.Generator, aval: jax.ShapeDtypeStruct) -> jax.Array:
    is_number = jnp.issubdtype(aval.dtype, jnp.inexact)
    values = rng.standard_normal(aval.shape, np.float32) if is_number else np.zeros(aval.shape)
    array: jax.Array = jnp.asarray(values).astype(aval.dtype)
    return array


def first_difference(a: Any, b: Any, *, relative: float = 0.02) -> Difference | None:
    """Return the first element in which two results of the same function differ.

    Interpreters round in a different order, so numbers count as equal if they differ by at most
    `relative` times the largest number in their array. NaN equals NaN.
    """
    first, second = jax.tree.leaves_with_path(a), jax.tree.leaves(b)
    for (path, x), y in zip(first, second, strict=False):
        found = _first(np.asarray(x), np.asarray(y), relative)
        if found is not None:
            return Difference(
                path=jax.tree_util.keystr(path),
                index=found,
                first=str(np.asarray(x)[found]),
                second=str(np.asarray(y)[found]),
            )
    return None


def _first(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], relative: float) -> Any:
    if x.shape != y.shape or x.size == 0:
        return None
    if jnp.issubdtype(x.dtype, jnp.inexact):
        x64, y64 = x.astype(np.float64), y.astype(np.float64)
        finite = np.abs(x64[np.isfinite(x64)])
        room = relative * (finite.max() if finite.size else 0.0)
        other = ~np.isclose(x64, y64, rtol=0, atol=room, equal_nan=True)
    else:
        other = x != y
    places = np.argwhere(other)
    return tuple(int(i) for i in places[0]) if len(places) else None
