"""Every bundled kernel equals its reference in value and gradient, and lowers for TPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import Operation, Spec, operations

MODES = {"hlo": True, "tpu": pltpu.InterpretParams()}

TOLERANCES = {"float32": 1e-5, "bfloat16": 2**-7, "int32": 0.0}
"""Relative to the largest entry; for bfloat16 that is one step there."""

COLLECTIVES = ("right_permute", "all_gather")
"""HLO interpret mode has no barrier semaphores; and they map over devices themselves, not vmap."""


def cases(
    *tags: str,
    collectives: bool = True,
    differentiable: bool = False,
    first: int | None = None,
) -> list[object]:
    """The operations with their specs of these tags; the `first` ones of each, or all."""
    return [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged(*tags)[:first]
        if (collectives or op.name not in COLLECTIVES) and (op.differentiable or not differentiable)
    ]


@cache
def reference_output(op: Operation, spec: Spec) -> Any:
    return jax.jit(partial(op.reference, **spec.kwargs))(*spec.make_args(seed=0))


@contextmanager
def interpreting(mode: str) -> Iterator[None]:
    try:
        with pltpu.force_tpu_interpret_mode(MODES[mode]):
            yield
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def assert_close(actual: Any, expected: Any) -> None:
    """Leaf by leaf, for what may be one array or several."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        wide_a, wide_e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        largest = np.abs(wide_e[np.isfinite(wide_e)]).max(initial=0.0)
        np.testing.assert_allclose(
            wide_a, wide_e, rtol=0.0, atol=TOLERANCES[e.dtype.name] * largest
        )


def gradient(function: Callable[..., Any], spec: Spec, argnums: tuple[int, ...]) -> Any:
    """Of a sum with random weights, so that no entry of the output counts like another."""

    def loss(*args: jax.Array) -> jax.Array:
        total = jnp.float32(0)
        for leaf in jax.tree.leaves(function(*args, **spec.kwargs)):
            weights = np.random.default_rng(1).standard_normal(leaf.shape, np.float32)
            total += (leaf.astype(jnp.float32) * weights).sum()
        return total

    return jax.jit(jax.grad(loss, argnums=argnums))


@pytest.mark.parametrize("op, spec", cases("small", "edge", collectives=False))
def test_equals_the_reference(op: Operation, spec: Spec) -> None:
    args = spec.make_args(seed=0)
    with interpreting("hlo"):
        actual = op.function(*args, **spec.kwargs)
    assert_close(actual, reference_output(op, spec))


@pytest.mark.parametrize("op, spec", cases("small"))
def test_equals_the_reference_in_tpu_interpret_mode(op: Operation, spec: Spec) -> None:
    args = spec.make_args(seed=0)
    with interpreting("tpu"):
        actual = jax.block_until_ready(op.function(*args, **spec.kwargs))
    assert_close(actual, reference_output(op, spec))


@pytest.mark.parametrize("op, spec", cases("small", "edge", differentiable=True))
def test_gradient_equals_the_references(op: Operation, spec: Spec) -> None:
    args = spec.make_args(seed=0)
    with interpreting("hlo"):
        actual = gradient(op.function, spec, op.differentiable)(*args)
    assert_close(actual, gradient(op.reference, spec, op.differentiable)(*args))


@pytest.mark.parametrize("op, spec", cases("small", differentiable=True, first=1))
def test_gradient_equals_the_references_in_tpu_interpret_mode(op: Operation, spec: Spec) -> None:
    args = spec.make_args(seed=0)
    with interpreting("tpu"):
        actual = jax.block_until_ready(gradient(op.function, spec, op.differentiable)(*args))
    assert_close(actual, gradient(op.reference, spec, op.differentiable)(*args))


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


@pytest.mark.parametrize("op, spec", cases("small", collectives=False, first=1))
def test_runs_under_vmap(op: Operation, spec: Spec) -> None:
    samples = [spec.make_args(seed) for seed in (0, 1)]
    batched = [jnp.stack(arrays) for arrays in zip(*samples, strict=True)]
    with interpreting("hlo"):
        actual = jax.vmap(partial(op.function, **spec.kwargs))(*batched)
    reference = jax.jit(partial(op.reference, **spec.kwargs))
    expected = [reference(*args) for args in samples]
    assert_close(actual, jax.tree.map(lambda *leaves: jnp.stack(leaves), *expected))
