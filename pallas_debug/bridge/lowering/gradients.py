"""Gradients of a function, exact and by finite differences, as functions of the same arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SEED = 1
"""Seed of cotangents and directions; made-up arguments have seed 0."""

DIRECTIONS = 2
"""Directions in which each argument is varied."""

STEP = 0.01
"""Finite differences vary an argument by this part of its root mean square, and by twice that.

The error of a central difference is least near the cube root of float32's unit, 0.005 (W. H. Press
et al., Numerical Recipes, 5.7).
"""

MAX_UNCERTAINTY = 0.01
"""Relative uncertainty of a finite difference above which it judges nothing: half the tolerance."""


def has_floats(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether any argument is an array of floats, which a gradient is with respect to."""
    return any(_is_float(leaf) for leaf in jax.tree.leaves((tuple(args), dict(kwargs))))


def gradient(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., dict[str, Any]]:
    """Return the gradient of a function with respect to all arrays of floats of its arguments.

    It is a vector-Jacobian product. The cotangents are standard normal numbers that depend only on
    the shapes and the order of the results, so that two functions with like results get the same;
    they have bfloat16's precision, and are thus the same in wider dtypes.

    Args:
      names: of the leaves of its arguments, in the result; see `arrays.names_of`.

    Returns:
      A function of the same arguments that returns the gradients by argument.
    """

    @functools.wraps(function)
    def differentiated(*args: Any, **kwargs: Any) -> dict[str, Any]:
        called, floats = _of_floats(function, names, args, kwargs)
        results, pull_back = jax.vjp(called, floats)
        return pull_back(_cotangents(results))[0]  # type: ignore[no-any-return]

    return differentiated


def derivatives(
    function: Callable[..., Any], names: Sequence[str]
) -> Callable[..., dict[str, Any]]:
    """Return the derivatives of a function in some directions of each argument, by its gradient.

    They are of the sum of its results, weighted with the cotangents of `gradient`.
    """
    of = gradient(function, names)

    @functools.wraps(function)
    def along(*args: Any, **kwargs: Any) -> dict[str, Any]:
        gradients = of(*args, **kwargs)
        return {
            name: jnp.stack([jnp.vdot(pulled, d).astype(jnp.float32) for d in _directions(pulled)])
            for name, pulled in gradients.items()
        }

    return along


def finite_differences(
    function: Callable[..., Any], names: Sequence[str]
) -> Callable[..., dict[str, Any]]:
    """Return `derivatives` by central differences of the function itself.

    Each is extrapolated from two steps (L. F. Richardson, 1911), whose difference, together with
    the rounding of the results, is its uncertainty; where that is above `MAX_UNCERTAINTY`, it is
    NaN.
    """

    @functools.wraps(function)
    def differences(*args: Any, **kwargs: Any) -> dict[str, Any]:
        called, floats = _of_floats(function, names, args, kwargs)
        found = {}
        for name, value in floats.items():

            def of_one(leaf: Any, name: str = name) -> Any:
                return called({**floats, name: leaf})

            size = float(np.sqrt(np.mean(np.square(np.asarray(value, np.float64))))) or 1.0
            along = [_derivative(of_one, value, d, size) for d in _directions(value)]
            found[name] = np.array(along, np.float32)
        return found

    return differences


def _derivative(
    function: Callable[[Any], Any], value: Any, direction: np.ndarray, size: float
) -> float:
    """Return the derivative of a function in a direction; NaN if it is too uncertain."""
    slopes, noise = [], 0.0
    for step in (STEP * size, 2 * STEP * size):
        ahead, behind = (
            function(jnp.asarray(value + sign * step * direction, value.dtype)) for sign in (1, -1)
        )
        terms = np.concatenate([*_terms(ahead), *(-term for term in _terms(behind))])
        slopes.append(float(terms.sum()) / (2 * step))
        leaves = [leaf for leaf in jax.tree.leaves(ahead) if _is_float(leaf)]
        unit = max(float(jnp.finfo(leaf.dtype).eps) for leaf in [*leaves, value])
        noise = max(noise, unit * float(np.sqrt(np.square(terms).sum())) / (2 * step))
    derivative = (4 * slopes[0] - slopes[1]) / 3
    uncertainty = abs(slopes[0] - slopes[1]) / 3 + noise
    return derivative if uncertainty <= MAX_UNCERTAINTY * abs(derivative) else math.nan


def _terms(results: Any) -> Iterator[np.ndarray]:
    """Results times their cotangents."""
    cotangents = jax.tree.leaves(_cotangents(results))
    for leaf, weight in zip(jax.tree.leaves(results), cotangents, strict=True):
        if _is_float(leaf):
            yield (np.asarray(leaf, np.float64) * np.asarray(weight, np.float64)).ravel()


def _of_floats(
    function: Callable[..., Any],
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]:
    """Return a function of the arrays of floats among its arguments alone, and these by name."""
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    known = list(zip(names, leaves, strict=True))

    def called(floats: Mapping[str, Any]) -> Any:
        given = [floats.get(name, leaf) for name, leaf in known]
        args, kwargs = jax.tree.unflatten(tree, given)
        return function(*args, **kwargs)

    return called, {name: jnp.asarray(leaf) for name, leaf in known if _is_float(leaf)}


def _cotangents(results: Any) -> Any:
    """Random cotangents of some results; zeros without a dtype for integers, as jax wants them."""
    leaves, tree = jax.tree.flatten(results)
    rng = np.random.default_rng(SEED)
    found: list[Any] = []
    for leaf in leaves:
        drawn = rng.standard_normal(np.shape(leaf), np.float32)
        if _is_float(leaf):
            found.append(jnp.asarray(drawn).astype(jnp.bfloat16).astype(leaf.dtype))
        else:
            found.append(np.zeros(np.shape(leaf), jax.dtypes.float0))
    return jax.tree.unflatten(tree, found)


def _directions(leaf: Any) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(SEED + 1)
    for _ in range(DIRECTIONS):
        yield rng.standard_normal(np.shape(leaf), np.float32)


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))
