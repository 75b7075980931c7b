"""Values, gradients and TPU lowering of every bundled kernel, compared with its reference."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu
from marks import mark_all_but_first
from pallas_debug_kernels import BundledOperation, Spec, operations
from references import assert_close, gradient, weights

MODES = {"hlo": True, "tpu": pltpu.InterpretParams()}

COLLECTIVES = ("all_gather",)
"""HLO interpret mode has no barrier semaphores; and it maps over devices itself, not vmap."""


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


@pytest.fixture(autouse=True)
def optimised_if_large(request: pytest.FixtureRequest) -> Iterator[None]:
    """On large arrays XLA's optimisation takes less time than it saves."""
    before = jax.config.read("jax_disable_most_optimizations")
    is_large = "bench" in request.node.callspec.params["spec"].tags
    jax.config.update("jax_disable_most_optimizations", not is_large)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def in_modes(cases: list[Any], key: Callable[[str, str], Hashable]) -> list[Any]:
    """Those cases in HLO interpret mode, and the small ones in TPU interpret mode.

    Slow but the first with each `key`, of operation and mode, and never the largest shapes.
    """
    both = [
        pytest.param(*case.values, mode, id=f"{case.id}-{mode}")
        for case in cases
        for mode in MODES
        if mode == "hlo" or "small" in case.values[1].tags
        if mode == "tpu" or case.values[0].name not in COLLECTIVES
    ]
    small = [case for case in both if "bench" not in case.values[1].tags]
    large = [case for case in both if "bench" in case.values[1].tags]
    marked = mark_all_but_first(small, lambda op, spec, mode: key(op.name, mode))
    return [
        *marked,
        *(pytest.param(*c.values, marks=pytest.mark.slow, id=c.id) for c in large),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "op, spec, mode",
    in_modes(
        cases("small", "edge", "bench"),
        lambda op, mode: op if mode == "hlo" or op in (*COLLECTIVES, "dma_copy") else None,
    ),
)
def test_equals_the_reference(op: BundledOperation, spec: Spec, mode: str) -> None:
    args = spec.make_args(seed=0)
    with interpreting(mode):
        actual = jax.block_until_ready(op.function(*args, **spec.kwargs))
    assert_close(actual, op, spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op, spec, mode",
    in_modes(
        cases("small", "edge", "bench", differentiable=True),
        lambda op, mode: op if mode == "hlo" else None,
    ),
)
def test_gradient_equals_the_references(op: BundledOperation, spec: Spec, mode: str) -> None:
    args = spec.make_args(seed=0)
    with interpreting(mode):
        of_kernel = gradient(op.function, spec, op.differentiable)
        actual = jax.block_until_ready(of_kernel(weights(op, spec), *args))
    assert_close(actual, op, spec, is_gradient=True)


def lowered(op: BundledOperation, spec: Spec) -> str:
    traced = jax.jit(partial(op.function, **spec.kwargs)).trace(*spec.args)
    return traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize(
    "op, spec", mark_all_but_first(cases("small", "edge", "bench"), lambda op, spec: op.name)
)
def test_lowers_for_tpu_without_a_chip_under_a_stable_name(
    op: BundledOperation, spec: Spec
) -> None:
    assert f'kernel_name = "{op.name}"' in lowered(op, spec)


@pytest.mark.parametrize("op, spec", cases("small", first=1))
def test_lowers_under_x64(op: BundledOperation, spec: Spec) -> None:
    with jax.enable_x64(True):
        assert f'kernel_name = "{op.name}"' in lowered(op, spec)


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases("small", collectives=False, first=1))
def test_runs_under_vmap(op: BundledOperation, spec: Spec) -> None:
    samples = [spec.make_args(seed) for seed in (0, 1)]
    batched = [jnp.stack(arrays) for arrays in zip(*samples, strict=True)]
    with interpreting("hlo"):
        actual = jax.block_until_ready(jax.vmap(partial(op.function, **spec.kwargs))(*batched))
    for i, seed in enumerate((0, 1)):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], actual)
        assert_close(one, op, spec, seed=seed)
