"""The bundled operations with checks: no findings, and unchanged values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_debug_kernels import BundledOperation, Spec, operations
from tiers import mark_all_but_first

import pallas_debug

COLLECTIVES = ("right_permute", "all_gather")
"""HLO interpret mode has no barriers for them."""

QUICK = ("dma_matmul", "layer_norm", "paged_attention")
"""Operations of which every run checks a spec; between them they use what the others do."""

ROUNDED = {"softmax": "LLVM contracts and orders the sum of a row by what stands around it"}
"""Operations whose values may differ in the last bits, and why."""


def cases(*, differentiable: bool = False, first: int | None = None) -> list[Any]:
    """The operations with their specs; the `first` ones of each, or all. Large but a few."""
    found = [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged("small")[:first]
        if op.name not in COLLECTIVES and (op.differentiable or not differentiable)
    ]
    return mark_all_but_first(found, lambda op, spec: op.name if op.name in QUICK else None)


def assert_checked(
    op: BundledOperation, function: Callable[..., Any], args: Any, mode: str = "hlo"
) -> None:
    """That every check passes, and that the values are those of `function` alone."""
    with pallas_debug.interpret(mode):
        unchecked = jax.block_until_ready(jax.jit(function)(*args))
    report, checked = pallas_debug.check(jax.jit(function), interpret=mode)(*args)
    assert report.ok, str(report)
    for a, b in zip(jax.tree.leaves(checked), jax.tree.leaves(unchecked), strict=True):
        if op.name in ROUNDED and a.dtype == jnp.float32:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
        else:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases())
def test_value(op: BundledOperation, spec: Spec) -> None:
    assert_checked(op, partial(op.function, **spec.kwargs), spec.make_args(seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases(differentiable=True, first=2))
def test_gradient(op: BundledOperation, spec: Spec) -> None:
    def loss(*args: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(op.function(*args, **spec.kwargs))
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in leaves)

    assert_checked(op, jax.grad(loss, argnums=op.differentiable), spec.make_args(seed=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["dma_copy", *(pytest.param(n, marks=pytest.mark.slow) for n in ("flash_attention", "matmul"))],
)
def test_value_in_tpu_interpret_mode(name: str) -> None:
    op = next(op for op in operations() if op.name == name)
    spec = op.tagged("small")[0]
    assert_checked(op, partial(op.function, **spec.kwargs), spec.make_args(seed=0), mode="tpu")
