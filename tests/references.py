"""References of the bundled operations in float32; for the largest shapes, stored summaries.

    python tests/references.py      regenerate tests/kernels/data/references.npz

A summary has a hash of the arguments, sampled entries, the mean and mean square of each chunk of
an array, and for bfloat16 the error of the reference computed in bfloat16. It stands in for arrays
that take longer to compute than the kernel, and covers every entry by a checksum.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from pallas_debug_kernels import BundledOperation, Spec, operation, operations

FILE = Path(__file__).parent / "kernels" / "data" / "references.npz"
SAMPLES = 256
CHUNKS = 64

TOLERANCES = {"float32": 1e-5, "int32": 0.0}
"""Relative to the largest entry."""

HALF_STEP = 2**-9
"""Error of rounding to bfloat16, relative to the value: half a unit in the last place."""

Summary = Mapping[str, np.ndarray]


def is_large(spec: Spec) -> bool:
    return "bench" in spec.tags


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
    if is_large(spec) and seed == 0:
        assert_summarized(actual, op, spec, is_gradient=is_gradient)
        return
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


def assert_summarized(
    actual: Any, op: BundledOperation, spec: Spec, *, is_gradient: bool = False
) -> None:
    """Assert that `actual` is close to the stored summary of the reference."""
    case = case_name(op, spec, is_gradient)
    args = arguments(op, spec, 0, is_gradient)
    assert hash_of(args) == stored()[f"{case}/hash"].item()
    function = gradient(op.reference, spec, op.differentiable) if is_gradient else op.reference
    kwargs = {} if is_gradient else spec.kwargs
    shapes = jax.eval_shape(partial(function, **kwargs), *args)
    assert jax.tree.structure(actual) == jax.tree.structure(shapes)
    for n, (a, e) in enumerate(zip(jax.tree.leaves(actual), jax.tree.leaves(shapes), strict=True)):
        assert a.shape == e.shape
        expected = {
            key: stored()[f"{case}/{n}/{key}"] for key in ("samples", "means", "squares", "scale")
        }
        largest, rounded = expected["scale"]
        if a.dtype == jnp.bfloat16:
            assert e.dtype == jnp.float32
            tolerance = max(HALF_STEP, rounded + HALF_STEP)
        else:
            assert a.dtype == e.dtype
            tolerance = TOLERANCES[e.dtype.name]
        compare(summary(a), expected, tolerance * largest)


def compare(found: Summary, expected: Summary, largest_error: float) -> None:
    """Assert what follows from every entry being within `largest_error`."""
    for key in ("samples", "means"):
        assert np.abs(found[key] - expected[key]).max() <= largest_error, key
    roots = np.sqrt(expected["squares"])
    allowed = largest_error * (2 * roots + largest_error)
    assert (np.abs(found["squares"] - expected["squares"]) <= allowed).all()


def summary(array: Any) -> dict[str, np.ndarray]:
    flat = np.asarray(array, np.float64).ravel()
    assert np.isfinite(flat).all()
    chunks = np.array_split(flat, min(CHUNKS, flat.size))
    return {
        "samples": flat[np.random.default_rng(flat.size).integers(0, flat.size, SAMPLES)],
        "means": np.array([chunk.mean() for chunk in chunks]),
        "squares": np.array([np.square(chunk).mean() for chunk in chunks]),
    }


def case_name(op: BundledOperation, spec: Spec, is_gradient: bool) -> str:
    return f"{op.name}-{spec.name}-{'gradient' if is_gradient else 'value'}"


def hash_of(args: list[Any]) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(args):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf))
    return digest.hexdigest()[:16]


@cache
def stored() -> Summary:
    with np.load(FILE) as file:
        return dict(file)


def cases() -> list[tuple[BundledOperation, Spec, bool]]:
    """The operations with their largest specs, for value and gradient."""
    return [
        (op, spec, is_gradient)
        for op in operations()
        for spec in op.specs
        if is_large(spec) and op.name != "all_gather"
        for is_gradient in (False, True)
        if op.differentiable or not is_gradient
    ]


def main() -> None:
    arrays: dict[str, Any] = {}
    for op, spec, is_gradient in cases():
        case = case_name(op, spec, is_gradient)
        arrays[f"{case}/hash"] = np.array(hash_of(arguments(op, spec, 0, is_gradient)))
        expected = jax.tree.leaves(referred(op.name, spec.name, 0, is_gradient))
        is_rounded = any(arg.dtype == jnp.bfloat16 for arg in spec.args)
        rounded: list[Any] = [None] * len(expected)
        if is_rounded:
            rounded = jax.tree.leaves(referred(op.name, spec.name, 0, is_gradient, is_rounded=True))
        for n, (e, r) in enumerate(zip(expected, rounded, strict=True)):
            of_leaf: dict[str, Any] = summary(e)
            of_leaf["scale"] = [np.abs(np.asarray(e)).max(), 0.0 if r is None else error_of(r, e)]
            for key, value in of_leaf.items():
                arrays[f"{case}/{n}/{key}"] = np.asarray(value)
        sys.stderr.write(f"{case}\n")
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
