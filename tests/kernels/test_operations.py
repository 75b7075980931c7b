"""Every bundled kernel equals its reference in value and gradient, and lowers for TPU."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Literal
from pallas_debug_kernels import Operation, Spec, operations
from tiers import slow_but_first

MODES = {"hlo": True, "tpu": pltpu.InterpretParams()}

TOLERANCES = {"float32": 1e-5, "int32": 0.0}
"""Relative to the largest entry."""

HALF_STEP = 2**-9
"""What rounding to bfloat16 costs, relative to the value: half a unit in its last place."""

COLLECTIVES = ("right_permute", "all_gather")
"""HLO interpret mode has no barrier semaphores; and they map over devices themselves, not vmap."""


def cases(
    *tags: str,
    collectives: bool = True,
    differentiable: bool = False,
    first: int | None = None,
) -> list[Any]:
    """The operations with their specs of these tags; the `first` ones of each, or all."""
    return [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged(*tags)[:first]
        if (collectives or op.name not in COLLECTIVES) and (op.differentiable or not differentiable)
    ]


@contextmanager
def interpreting(mode: str) -> Iterator[None]:
    try:
        with pltpu.force_tpu_interpret_mode(MODES[mode]):
            yield
    finally:
        pltpu.reset_tpu_interpret_mode_state()


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
    """What the reference computes in float32; both modes of a spec share it."""
    op = operation(name)
    spec = op.spec(spec_name)
    args = widened(spec.make_args(seed=seed))
    if is_gradient:
        args = [weights(op, spec), *args]
    return compiled_reference(name, spec_name, is_gradient, is_rounded)(*args)


def operation(name: str) -> Operation:
    return next(op for op in operations() if op.name == name)


def assert_close(
    actual: Any, op: Operation, spec: Spec, *, seed: int = 0, is_gradient: bool = False
) -> None:
    """That each leaf of `actual` is as near to the reference in float32 as can be asked for.

    A bfloat16 leaf may err as much as the reference does that computes in bfloat16.
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


def weights(op: Operation, spec: Spec) -> list[np.ndarray]:
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


@pytest.fixture(autouse=True)
def quick_to_compile(request: pytest.FixtureRequest) -> Iterator[None]:
    """On small arrays XLA would optimise for longer than it runs."""
    before = jax.config.read("jax_disable_most_optimizations")
    is_large = "bench" in request.node.callspec.params["spec"].tags
    jax.config.update("jax_disable_most_optimizations", not is_large)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def in_modes(cases: list[Any], key: Callable[[str, str], Hashable]) -> list[Any]:
    """Those cases in HLO interpret mode, and the small ones in TPU interpret mode.

    Slow but the first with each `key`, of operation and mode.
    """
    both = [
        pytest.param(*case.values, mode, id=f"{case.id}-{mode}")
        for case in cases
        for mode in MODES
        if mode == "hlo" or "small" in case.values[1].tags
        if mode == "tpu" or case.values[0].name not in COLLECTIVES
    ]
    return slow_but_first(both, lambda op, spec, mode: key(op.name, mode))


@pytest.mark.parametrize(
    "op, spec, mode", in_modes(cases("small", "edge", "bench"), lambda op, mode: (op, mode))
)
def test_equals_the_reference(op: Operation, spec: Spec, mode: str) -> None:
    args = spec.make_args(seed=0)
    with interpreting(mode):
        actual = jax.block_until_ready(op.function(*args, **spec.kwargs))
    assert_close(actual, op, spec)


@pytest.mark.parametrize(
    "op, spec, mode",
    in_modes(
        cases("small", "edge", "bench", differentiable=True),
        lambda op, mode: op if mode == "hlo" else None,
    ),
)
def test_gradient_equals_the_references(op: Operation, spec: Spec, mode: str) -> None:
    args = spec.make_args(seed=0)
    with interpreting(mode):
        of_kernel = gradient(op.function, spec, op.differentiable)
        actual = jax.block_until_ready(of_kernel(weights(op, spec), *args))
    assert_close(actual, op, spec, is_gradient=True)


def lowered(op: Operation, spec: Spec) -> str:
    traced = jax.jit(partial(op.function, **spec.kwargs)).trace(*spec.args)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("op, spec", cases("small", "edge", "bench"))
def test_lowers_for_tpu_without_a_chip_under_a_stable_name(op: Operation, spec: Spec) -> None:
    assert f'kernel_name = "{op.name}"' in lowered(op, spec)


@pytest.mark.parametrize("op, spec", cases("small", first=1))
def test_lowers_under_x64(op: Operation, spec: Spec) -> None:
    with jax.enable_x64(True):
        assert f'kernel_name = "{op.name}"' in lowered(op, spec)


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases("small", collectives=False, first=1))
def test_runs_under_vmap(op: Operation, spec: Spec) -> None:
    samples = [spec.make_args(seed) for seed in (0, 1)]
    batched = [jnp.stack(arrays) for arrays in zip(*samples, strict=True)]
    with interpreting("hlo"):
        actual = jax.block_until_ready(jax.vmap(partial(op.function, **spec.kwargs))(*batched))
    for i, seed in enumerate((0, 1)):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], actual)
        assert_close(one, op, spec, seed=seed)
