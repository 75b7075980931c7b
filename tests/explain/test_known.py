"""Bugs in specific releases: the affected versions, and the kernels that may trigger them."""

from __future__ import annotations

import pytest
from broken_kernels import broken

from pallas_debug.bridge.lowering import trace
from pallas_debug.explain.known import known_issues
from pallas_debug.model import Kernel, Operand
from pallas_debug.session import Options, Session

JAXPR = """\
{ lambda ; a:Ref<any>{f32[16,128]} b:Ref<any>{f32[16,128]} c:Ref<default>{f32[16,128]}
    d:Ref<semaphore_mem>{dma_sem[]}. let
    dma_start(p0) a[...] -> c[...] d[...]
  in () }
"""
"""As a dump has it, of a kernel that never uses its second input."""

KERNEL = Kernel(
    name="k",
    digest="",
    primitive="pallas_call",
    operands=tuple(
        Operand(name=kind, kind=kind, shape=(16, 128), dtype="float32", memory_space="any")  # type: ignore[arg-type]
        for kind in ("input", "input", "output", "scratch")
    ),
)


def issues(kernel: Kernel, jaxpr: str, **versions: str) -> set[str]:
    return {issue.id for issue in known_issues(kernel, jaxpr, versions)}


def test_an_input_that_is_not_used_beside_a_copy() -> None:
    versions = ("0.0.41", "0.0.43", "0.0.45.2", "0.0.46", "0.0.50")
    assert [v for v in versions if issues(KERNEL, JAXPR, libtpu=v)] == ["0.0.43", "0.0.45.2"]
    assert issues(KERNEL, JAXPR, libtpu="0.0.43") == {"dma-zeros-with-unused-operand"}
    assert issues(KERNEL, JAXPR) == set()
    used = JAXPR.replace("  in () }", "    dma_start(p0) b[...] -> c[...] d[...]\n  in () }")
    for other in (used, JAXPR.replace("dma_start", "something_else")):
        assert issues(KERNEL, other, libtpu="0.0.44") == set()


@pytest.mark.parametrize("name", ["mask_as_column", "cumulative_sum"])
def test_a_mask_that_becomes_a_column(name: str) -> None:
    """By the jaxpr that jax gives today."""
    kernel = broken(name)
    found = []
    with Session(Options(dumps=None, targets=("v5e",), interpret="off")) as session:
        for function in (kernel.function, kernel.repaired):
            with session.collecting() as captures:
                trace.lower_for_kernels(function, kernel.args, {}, session.targets[0])
            for libtpu in ("0.0.50.1", "0.0.42.1"):
                found += issues(captures[0].kernel, captures[0].jaxpr, libtpu=libtpu)
    assert found == (["boolean-column-abort"] if name == "mask_as_column" else [])
