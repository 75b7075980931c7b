"""Arrays as arguments and results: generation from shapes, and comparison."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.chips import LANES, SUBLANES


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
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype


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
    """Return whether an argument is a shape and dtype without values."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


Values = Literal["random normal", "random", "zeros", "key(0)"]
"""Values that are made up for an array: standard normal, uniform over all values, …"""

_TILE = SUBLANES * LANES
"""Elements of a matrix from which on it is data: tables of blocks and pages are smaller."""


@dataclass(frozen=True, kw_only=True)
class AbstractLeaf:
    """An array without values among the arguments of a function.

    Attributes:
      number: among the leaves of `(args, kwargs)`.
      values: those that `concrete` gives it.
    """

    number: int
    shape: tuple[int, ...]
    dtype: str
    values: Values

    @property
    def may_be_index(self) -> bool:
        """True if it has integers or bools, so that indices or conditions may depend on it."""
        return self.values in ("zeros", "random")


def abstract_leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[AbstractLeaf]:
    """Return the arrays without values among the arguments."""
    return [
        AbstractLeaf(
            number=number, shape=tuple(leaf.shape), dtype=str(leaf.dtype), values=_values_of(leaf)
        )
        for number, leaf in enumerate(jax.tree.leaves((tuple(args), dict(kwargs))))
        if is_abstract(leaf)
    ]


def names_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the names of the leaves among a function's arguments: `q`, `p['w']`, `argument 1`."""
    own = [f"argument {i + 1}" for i in range(len(args))]
    with contextlib.suppress(TypeError, ValueError):  # it has no signature
        parameters = inspect.signature(function).parameters.values()
        for i, parameter in zip(range(len(args)), parameters, strict=False):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.KEYWORD_ONLY):
                break
            own[i] = parameter.name
    found = []
    for (_, argument, *inner), _ in jax.tree.leaves_with_path((tuple(args), dict(kwargs))):
        key: Any = argument
        name = key.key if hasattr(key, "key") else own[key.idx]
        found.append(f"{name}{jax.tree_util.keystr(tuple(inner))}")
    return found


def _values_of(aval: jax.ShapeDtypeStruct) -> Values:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return "key(0)"
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return "random normal"
    is_narrow = aval.dtype == bool or jnp.iinfo(aval.dtype).bits <= 8
    return "random" if is_narrow and aval.ndim > 1 and aval.size >= _TILE else "zeros"


def concrete(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace abstract arguments with values.

    Floating-point arrays are standard normal. Integers and bools are zero: they are often indices,
    counts or offsets, for which other numbers might be invalid. Matrices of bools and of integers
    of at most 8 bits, a tile or larger, are data or masks: they are uniform over all values.
    """
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    filled = [_array(rng, leaf) if is_abstract(leaf) else leaf for leaf in leaves]
    made_args, made_kwargs = jax.tree.unflatten(tree, filled)
    return made_args, made_kwargs


def _array(rng: np.random.Generator, aval: jax.ShapeDtypeStruct) -> jax.Array:
    values = _values_of(aval)
    if values == "key(0)":
        keys: jax.Array = jnp.broadcast_to(jax.random.key(0), aval.shape)
        return keys
    if values == "random normal":
        made = rng.standard_normal(aval.shape, np.float32)
    elif values == "zeros":
        made = np.zeros(aval.shape)
    elif aval.dtype == bool:
        made = rng.integers(0, 2, aval.shape)
    else:
        limits = jnp.iinfo(aval.dtype)
        made = rng.integers(int(limits.min), int(limits.max) + 1, aval.shape)
    array: jax.Array = jnp.asarray(made).astype(aval.dtype)
    return array


def leaves(result: Any) -> list[Any]:
    """Return the arrays of a result."""
    return list(jax.tree.leaves(result))


def has_leaves(result: Any) -> bool:
    """Return whether a function returned anything but None."""
    return bool(jax.tree.leaves(result))


def are_identical(a: Any, b: Any) -> bool:
    """Return whether two results of a function have the same arrays, bit for bit."""
    return list(map(_bits, jax.tree.leaves(a))) == list(map(_bits, jax.tree.leaves(b)))


def _bits(leaf: Any) -> Any:
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    values = np.asarray(leaf)
    return leaf if values.dtype == object else (values.shape, str(values.dtype), values.tobytes())


def host_leaves(result: Any) -> list[tuple[str, str, Any]]:
    """Path, dtype and values of each array in a result.

    The dtype is the one that jax gives such values. Floats are widened to float64, complex numbers
    to complex128; 4-bit integers become int8; PRNG keys become their integers. Values that are not
    arrays and have no dtype are returned as they are, with an empty dtype.
    """
    found = []
    for path, leaf in jax.tree.leaves_with_path(result):
        name = jax.tree_util.keystr(path)
        if not isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype"):
            found.append((name, "", leaf))
            continue
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        values = np.asarray(leaf)
        dtype = canonical(values.dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values.astype(np.complex128)
        elif jnp.issubdtype(dtype, jnp.floating):
            values = values.astype(np.float64)
        elif values.dtype.kind not in "biu":  # jax's integers of few bits
            values = values.astype(np.int8 if jnp.iinfo(dtype).min < 0 else np.uint8)
        found.append((name, str(jnp.dtype(dtype).name), values))
    return found


ARRAY = object()
"""Placeholder of an array among other arguments."""


def of_arrays(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """A function of the arrays among some arguments alone, and these arrays.

    `jax.ShapeDtypeStruct`s count as arrays; all other arguments are passed unchanged. Results that
    jax cannot return from a traced function, such as strings, are replaced with None.
    """
    given, others, tree = separated(args, kwargs)

    def call(*arrays: Any) -> Any:
        a, k = joined(arrays, others, tree)
        return jax.tree.map(_traceable, function(*a, **k))

    return call, given


def separated(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], tuple[Any, ...], Any]:
    """Separate arrays from other arguments; return both, and the tree that `joined` takes.

    Among the others, arrays are `ARRAY`.
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]
    given = [leaf for leaf, found in zip(leaves, is_array, strict=True) if found]
    others = (ARRAY if found else leaf for leaf, found in zip(leaves, is_array, strict=True))
    return given, tuple(others), tree


def joined(arrays: Sequence[Any], others: Sequence[Any], tree: Any) -> Any:
    """Return the positional and keyword arguments that `separated` has taken apart."""
    following = iter(arrays)
    leaves = [next(following) if leaf is ARRAY else leaf for leaf in others]
    return jax.tree.unflatten(tree, leaves)


def _traceable(leaf: Any) -> Any:
    """A leaf of a result, or None if a traced function cannot return it."""
    is_number = isinstance(leaf, (bool, int, float, complex))
    return leaf if is_number or hasattr(leaf, "dtype") else None
