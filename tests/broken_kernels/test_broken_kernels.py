"""Each broken kernel is found with its kind and line, or hinted at; nothing is found in its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import pytest
from tiers import mark_all_but_first

import pallas_debug
from broken_kernels import ALL, BrokenKernel
from pallas_debug.findings.faults import Fault
from pallas_debug.verdict import Verdict

pytestmark = pytest.mark.usefixtures("quick_to_compile")

OF_INTENT = [kernel for kernel in ALL if kernel.fault == Fault.VALUE_MISMATCH]
"""Kernels that only a comparison with a reference can accuse."""

OF_FACT = [kernel for kernel in ALL if kernel not in OF_INTENT]

OTHER_KINDS = {"mask_as_column": {Fault.UNSUPPORTED_SHAPE_CAST, Fault.COMPILER_ABORT}}
"""Kinds that depend on the release of libtpu."""


def first_of_each(kernels: Iterable[BrokenKernel], key: str) -> list[Any]:
    """Kernels as parameters, all marked slow but the first of each fault or topic."""
    rows = [pytest.param(kernel, id=kernel.name) for kernel in kernels]
    return mark_all_but_first(rows, lambda kernel: getattr(kernel, key))


def verified(
    kernel: BrokenKernel, function: Callable[..., Any], *, compared: bool = False
) -> Verdict:
    is_compiled = kernel.refused and kernel in OF_FACT
    engines = "static,machine,compile" if is_compiled else "static,machine"
    with jax.enable_x64(kernel.x64):
        return pallas_debug.verify(
            function,
            *kernel.make_args(),
            targets=kernel.targets,
            engines=engines,
            hang_after=2.0,
            reference=kernel.reference if compared else None,
        )


@pytest.mark.parametrize("kernel", first_of_each(OF_FACT, "fault"))
def test_found_with_its_kind_and_line(kernel: BrokenKernel) -> None:
    compared = kernel.fault == Fault.LOW_PRECISION_PRODUCT
    verdict = verified(kernel, kernel.function, compared=compared)
    kinds = OTHER_KINDS.get(kernel.name, {Fault(kernel.fault)})
    found = [
        finding
        for finding in verdict.findings
        if finding.source is not None
        and (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
        and finding.kind in kinds
        and finding.counts
    ]
    assert found, str(verdict)
    assert all(finding.cause and finding.advice for finding in found)


@pytest.mark.parametrize("kernel", first_of_each(OF_INTENT, "hint"))
def test_hinted_at_and_not_accused(kernel: BrokenKernel) -> None:
    verdict = verified(kernel, kernel.function)
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    if kernel.hint is not None:
        assert kernel.hint in {hint.kind for hint in verdict.hints}, str(verdict)


@pytest.mark.parametrize("kernel", first_of_each(ALL, "topic"))
def test_nothing_is_found_in_the_repaired_twin(kernel: BrokenKernel) -> None:
    verdict = verified(kernel, kernel.repaired, compared=True)
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    assert {outcome.status for outcome in verdict.outcomes} <= {"ok", "unsupported"}, str(verdict)
