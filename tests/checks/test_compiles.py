"""Compilation of the bundled kernels with all checks, for each generation of TPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import checkify
from jax.experimental import pallas as pl
from marks import mark_all_but_first
from pallas_debug_kernels import BundledOperation, Spec, operations

import pallas_debug.checkify as ours
from pallas_debug import defaults
from pallas_debug.bridge.instrument import checkify_errors
from pallas_debug.bridge.lowering import trace
from pallas_debug.compiler import targets
from pallas_debug.model import Dump
from pallas_debug.session import Options, Session

TARGETS = tuple(target.name for target in targets.BUILTIN)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    options = Options(
        dumps=tmp_path_factory.mktemp("checks") / "dumps", targets=TARGETS, interpret="off"
    )
    with Session(options) as session:
        yield session


@pytest.fixture(autouse=True)
def every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """`checkify` puts all of our checks into a kernel, also those that it has no errors for."""
    ours.install()
    every = dict.fromkeys(defaults.CHECKS, checkify_errors.CATEGORIES["user"])
    monkeypatch.setattr(checkify_errors, "CATEGORIES", every)


def compiled(session: Session, function: Callable[..., Any], spec: Spec) -> list[Dump]:
    """The kernels of a function with checks in them, compiled for each target."""
    with session.collecting() as captures:
        trace.lower_for_kernels(checkify.checkify(function), spec.args, {}, session.targets[0])
    session.queue.request(captures, session.targets)
    session.wait()
    assert not session.problems
    digests = {captured.kernel.digest for captured in captures}
    return [dump for dump in session.dumps if dump.kernel.digest in digests]


def cases() -> list[Any]:
    """Slow but one, with DMAs and scratch."""
    found = [
        pytest.param(op, spec, id=f"{op.name}-{spec.name}")
        for op in operations()
        for spec in op.tagged("small")[:1]
        if op.name != "all_gather"  # lowered for a mesh of devices, by a test of its own
    ]
    return mark_all_but_first(found, lambda op, spec: op.name if op.name == "dma_copy" else None)


@pytest.mark.slow
@pytest.mark.parametrize("op, spec", cases())
def test_forward(session: Session, op: BundledOperation, spec: Spec) -> None:
    dumps = compiled(session, partial(op.function, **spec.kwargs), spec)
    assert op.name in {dump.kernel.name for dump in dumps}
    for dump in dumps:
        assert dump.kernel.of_kind("output")[-1].name == "checks_ref"
        assert dump.kernel.of_kind("output")[-1].memory_space == "smem"
        failures = {c.target: c.failure for c in dump.compilations if not c.ok}
        assert set(failures) == set(spec.not_on), failures
        assert {c.target for c in dump.compilations} == set(TARGETS)
        for target in set(TARGETS) - set(spec.not_on):
            module = (dump.folder / target / "mosaic.mlir").read_text()
            assert "callback" not in module
            assert "tpu.log" not in module


def test_what_is_lowered_for_a_chip_that_is_not_here_is_left_alone() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sqrt(x_ref[...])

    shape = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    function = pl.pallas_call(kernel, out_shape=shape, grid=(2,), name="roots")
    with Session(Options(interpret="off", checks=tuple(defaults.CHECKS))):
        text = jax.jit(function).trace(shape).lower(lowering_platforms=("tpu",)).as_text()
    (call,) = [line for line in text.splitlines() if "@tpu_custom_call" in line]
    assert call.rstrip().endswith("-> tensor<16x128xf32>")
    assert "callback" not in text
