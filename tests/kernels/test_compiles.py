"""Compilation of the bundled kernels for every TPU generation, with the listed exceptions."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from marks import mark_all_but_first
from pallas_debug_kernels import BundledOperation, Spec, operations

from pallas_debug.bridge.lowering import trace
from pallas_debug.compiler import targets
from pallas_debug.model import Dump
from pallas_debug.session import Options, Session

TARGETS = tuple(target.name for target in targets.BUILTIN)
OLD_AND_NEW = ("v4", "tpu7x")
"""Targets of gradients, whose kernels use what those of the values do."""

QUICK = ("vector_add", "matmul", "dma_copy", "flash_attention", "paged_attention", "all_gather")
"""Operations of which every run compiles a spec; between them they use what the others do."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Options(dumps=None, targets=TARGETS, interpret="off")) as session:
        yield session


def compiled(
    session: Session,
    function: Callable[..., Any],
    spec: Spec,
    names: Sequence[str] = TARGETS,
) -> list[Dump]:
    """The kernels of a function, each compiled for targets of those names."""
    digests = set()
    wanted = tuple(target for target in session.targets if target.name in names)
    for target in wanted:
        with session.collecting() as captures:
            asked = trace.lower_for_kernels(function, spec.args, {}, target)
        session.queue.request(captures, (target,) if asked else wanted)
        digests |= {captured.kernel.digest for captured in captures}
        if not asked:
            break
    session.wait()
    assert not session.problems
    return [dump for dump in session.dumps if dump.kernel.digest in digests]


def refused(dumps: list[Dump]) -> dict[str, str]:
    """What the compiler said, by target."""
    return {
        compilation.target: f"{dump.kernel.name}: {compilation.failure}"
        for dump in dumps
        for compilation in dump.compilations
        if not compilation.ok
    }


def cases(*, differentiable: bool) -> list[Any]:
    """Large but the first spec of a few operations."""
    found = [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged("small", "edge")
        if op.differentiable or not differentiable
    ]
    return mark_all_but_first(found, lambda op, spec: op.name if op.name in QUICK else None)


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases(differentiable=False))
def test_forward(session: Session, op: BundledOperation, spec: Spec) -> None:
    dumps = compiled(session, partial(op.function, **spec.kwargs), spec)
    assert op.name in {dump.kernel.name for dump in dumps}
    failures = refused(dumps)
    assert set(failures) == set(spec.not_on), failures


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases(differentiable=True))
def test_backward(session: Session, op: BundledOperation, spec: Spec) -> None:
    def loss(*args: jax.Array) -> jax.Array:
        leaves = jax.tree.leaves(op.function(*args, **spec.kwargs))
        return sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in leaves)

    gradient = jax.grad(loss, argnums=op.differentiable)
    dumps = compiled(session, gradient, spec, OLD_AND_NEW)
    assert len(dumps) > 1
    failures = refused(dumps)
    assert set(failures) == set(spec.not_on) & set(OLD_AND_NEW), failures
