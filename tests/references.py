"""References of the bundled operations in float32, and how near to them a result has to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from pallas_debug_kernels import BundledOperation, Spec, operation

TOLERANCES = {"float32": 1e-5, "int32": 0.0}
"""Relative to the largest entry."""

HALF_STEP = 2**-9
"""Error of rounding to bfloat16, relative to the value: half a unit in the last place."""


def error_of(actual: Any, expected: Any) -> float:
    """The largest difference, relative to the largest finite entry that is expected."""
    wide_a, wide_e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert wide_a.shape == wide_e.shape
    is_finite = np.isfinite(wide_e)
    np.testing.assert_array_equal(wide_a[~is_finite], wide_e[~is_finite])
    difference = np.abs(wide_a - wide_e, where=is_finite, out=np.zeros_like(wide_e))
    largest = np.abs(wide_e[is_finite]).max(initial=0.0)
    return float(difference.max(initial=0.0) / largest) if largest else float(difference.sum())


def rounded_to_bf16(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the result of every operation rounded to bfloat16 and held in float32."""

    def run(jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            if inner is not None:
                outputs = run(inner.jaxpr, inner.consts, inputs)
            else:
                bound = eqn.primitive.bind(*inputs, **eqn.params)
                outputs = list(bound) if eqn.primitive.multiple_results else [bound]
                # A pair of casts would be optimised away.
                outputs = [
                    lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
                    if x.dtype == jnp.float32
                    else x
                    for x in outputs
                ]
            known.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def rounded(*args: jax.Array) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return rounded


def widened(args: Iterable[jax.Array]) -> list[jax.Array]:
    return [x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in args]


@lru_cache(maxsize=4)
def compiled_reference(name: str, spec_name: str, is_gradient: bool, is_rounded: bool) -> Any:
    op = operation(name)
    spec = op.spec(spec_name)
    function = partial(op.reference, **spec.kwargs)
    if is_gradient:
        function = gradient(op.reference, spec, op.differentiable)
    return jax.jit(rounded_to_bf16(function) if is_rounded else function)


@lru_cache(maxsize=4)
def referred(
    name: str, spec_name: str, seed: int, is_gradient: bool, is_rounded: bool = False
) -> Any:
    """Result of the reference in float32; both modes of a spec share it."""
    op = operation(name)
    spec = op.spec(spec_name)
    args = arguments(op, spec, seed, is_gradient)
    return compiled_reference(name, spec_name, is_gradient, is_rounded)(*args)


def arguments(op: BundledOperation, spec: Spec, seed: int, is_gradient: bool) -> list[Any]:
    args = widened(spec.make_args(seed=seed))
    return [weights(op, spec), *args] if is_gradient else args


def weights(op: BundledOperation, spec: Spec) -> list[np.ndarray]:
    """Random factors for each output of an operation."""
    shapes = jax.eval_shape(partial(op.reference, **spec.kwargs), *spec.args)
    drawn = [
        np.random.default_rng(1).standard_normal(leaf.shape, np.float32)
        for leaf in jax.tree.leaves(shapes)
    ]
    # As a kernel gets them whose output is bfloat16.
    return [array.astype(jnp.bfloat16).astype(np.float32) for array in drawn]


def gradient(function: Callable[..., Any], spec: Spec, argnums: tuple[int, ...]) -> Any:
    """Of a sum with random weights, so that no entry of the output counts like another.

    The weights are its first argument: XLA spends seconds on folding large constants.
    """

    def loss(factors: list[jax.Array], *args: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(function(*args, **spec.kwargs))
        total = jnp.float32(0)
        for leaf, factor in zip(leaves, factors, strict=True):
            total += (leaf.astype(jnp.float32) * factor).sum()
        return total

    return jax.jit(jax.grad(loss, argnums=tuple(n + 1 for n in argnums)))


def assert_close(
    actual: Any, op: BundledOperation, spec: Spec, *, seed: int = 0, is_gradient: bool = False
) -> None:
    """Assert that each leaf of `actual` is as close to the float32 reference as can be expected.

    A bfloat16 leaf may have the error of the reference that computes in bfloat16.
    """
    expected = referred(op.name, spec.name, seed, is_gradient)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves, wanted = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for n, (a, e) in enumerate(zip(leaves, wanted, strict=True)):
        if a.dtype == jnp.bfloat16:
            # The last rounding is the kernel's own: a single entry may meet it at its worst.
            assert e.dtype == jnp.float32
            error = error_of(a, e)
            if error > HALF_STEP:  # else the reference in bfloat16, slow to compile, is not needed
                rounded = referred(op.name, spec.name, seed, is_gradient, is_rounded=True)
                assert error <= error_of(jax.tree.leaves(rounded)[n], e) + HALF_STEP
        else:
            assert a.dtype == e.dtype
            assert error_of(a, e) <= TOLERANCES[e.dtype.name]
