"""Bugs in specific releases: the affected versions, and the kernels that may trigger them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import pytest
from broken_kernels import BrokenKernel, broken

from pallas_debug import explain
from pallas_debug.bridge.lowering import trace
from pallas_debug.explain.known import numbers
from pallas_debug.model import Kernel, Operand
from pallas_debug.session import Options, Session

JAXPR = """\
{ lambda ; a:Ref<smem>{i32[4]} b:Ref<any>{f32[16,128]} c:Ref<any>{f32[16,128]} d:Ref<default>{f32[16,128]}
    e:Ref<semaphore_mem>{dma_sem[]}. let
    f:i32[] <- a[0]  # k.py:11:17 (pre.<locals>.k)
    g:i32[] = add f 1:i32[]  # k.py:11:17 (pre.<locals>.k)
    a[0] <- g  # k.py:11:8 (pre.<locals>.k)
    dma_start(p0) b[...] -> d[...] e[...]
    dma_wait d[...] e[...]
  in () }
"""
"""As a dump has it, of a kernel that writes to its scalar prefetch and never uses `y_hbm`."""


def operand(name: str, kind: str, **changes: object) -> Operand:
    made = Operand(name=name, kind="input", shape=(16, 128), dtype="float32", memory_space="any")
    return replace(made, kind=kind, **changes)  # type: ignore[arg-type]


KERNEL = Kernel(
    name="k",
    digest="",
    primitive="pallas_call",
    operands=(
        operand("table_ref", "scalar_prefetch"),
        operand("x_hbm", "input"),
        operand("y_hbm", "input"),
        operand("o_ref", "output", pipeline="Buffered(buffer_count=1, use_lookahead=False)"),
        operand("sem", "scratch"),
    ),
)


def issues(kernel: Kernel, jaxpr: str, **versions: str) -> set[str]:
    return {issue.id for issue in explain.known_issues(kernel, jaxpr, versions)}


def test_the_versions_that_have_a_fault() -> None:
    versions = ("0.0.41", "0.0.43", "0.0.45.2", "0.0.46", "0.0.50")
    assert [v for v in versions if issues(KERNEL, JAXPR, libtpu=v)] == ["0.0.43", "0.0.45.2"]
    assert issues(KERNEL, JAXPR, libtpu="0.0.43") == {"dma-zeros-with-unused-operand"}


def test_a_version_that_is_not_known_is_not_warned_of() -> None:
    assert issues(KERNEL, JAXPR) == set()


def test_an_operand_that_is_used_is_none_of_it() -> None:
    used = JAXPR.replace("  in () }", "    dma_start(p0) c[...] -> d[...] e[...]\n  in () }")
    assert issues(KERNEL, used, libtpu="0.0.44") == set()
    without_copies = JAXPR.replace("dma_start", "something_else")
    assert issues(KERNEL, without_copies, libtpu="0.0.44") == set()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(Options(dumps=None, targets=("v5e",), interpret="off")) as session:
        yield session


@pytest.mark.parametrize(
    "name, versions, expected",
    [
        ("mask_as_column", {"libtpu": "0.0.50.1"}, {"boolean-column-abort"}),
        ("mask_as_column", {"libtpu": "0.0.42.1"}, set()),
        ("cumulative_sum", {"jax": "0.12.0.1", "libtpu": "0.0.50.1"}, set()),
    ],
)
def test_kernels_of_the_broken_suite(
    session: Session, name: str, versions: dict[str, str], expected: set[str]
) -> None:
    """By the jaxpr that jax gives today."""
    kernel = broken(name)
    assert _issues_of(session, kernel.function, kernel, versions) == expected
    if name == "mask_as_column":
        assert _issues_of(session, kernel.repaired, kernel, versions) == set()


def _issues_of(
    session: Session,
    function: Callable[..., jax.Array],
    kernel: BrokenKernel,
    versions: dict[str, str],
) -> set[str]:
    with session.collecting() as captures:
        trace.lower_for_kernels(function, kernel.args, {}, session.targets[0])
    (captured,) = captures
    return issues(captured.kernel, captured.jaxpr, **versions)


def test_versions_compare_as_numbers() -> None:
    assert numbers("0.12.0.1") > numbers("0.12.0") > numbers("0.9.10")
    assert numbers("0.0.50.1.dev20260101") == (0, 0, 50, 1)
