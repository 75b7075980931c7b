"""Each broken kernel is found with its kind and line, or hinted at; nothing is found in its twin."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import pytest
from marks import mark_all_but_first

from broken_kernels import ALL, BrokenKernel
from broken_kernels.texts import ROOT, is_compared, path, text, verified
from pallas_debug.findings.faults import Fault
from pallas_debug.render import MAX_LINES
from pallas_debug.verdict import Verdict

Blessed = Callable[[Path, str], None]

pytestmark = pytest.mark.usefixtures("quick_to_compile")

OF_INTENT = [kernel for kernel in ALL if kernel.fault == Fault.VALUE_MISMATCH]
"""Kernels that only a comparison with a reference can accuse."""

OF_FACT = [kernel for kernel in ALL if kernel not in OF_INTENT]

OTHER_KINDS = {"mask_as_column": {Fault.UNSUPPORTED_SHAPE_CAST, Fault.COMPILER_ABORT}}
"""Kinds that depend on the release of libtpu."""


OF_JAX = "0.10.2"
"""Release of jax with which the texts were written."""


def first_of_each(kernels: Iterable[BrokenKernel], key: str) -> list[Any]:
    """Kernels as parameters, all marked slow but the first of each fault or topic."""
    rows = [pytest.param(kernel, id=kernel.name) for kernel in kernels]
    return mark_all_but_first(rows, lambda kernel: getattr(kernel, key))


def is_broken(kernel: BrokenKernel) -> bool:
    """Return whether this libtpu refuses it, if a refusal is all that is wrong with it."""
    libtpu = importlib.metadata.version("libtpu")
    targets = kernel.targets or ("v5e",)
    return not kernel.refused or any(
        refusal.holds_for(target, libtpu) for refusal in kernel.refused for target in targets
    )


@pytest.mark.parametrize("kernel", first_of_each(OF_FACT, "fault"))
def test_found_with_its_kind_and_line(
    kernel: BrokenKernel, blessed: Blessed, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verified(kernel, kernel.function, compared=is_compared(kernel))
    kinds = OTHER_KINDS.get(kernel.name, {Fault(kernel.fault)})
    found = [
        finding
        for finding in verdict.findings
        if finding.source is not None
        and finding.source.file == kernel.file
        # A compiler that aborts names no line: the one found is the kernel's.
        and (finding.source.line == kernel.line or finding.kind is Fault.COMPILER_ABORT)
        and finding.kind in kinds
        and finding.counts
    ]
    assert bool(found) == is_broken(kernel), str(verdict)
    assert all(finding.cause and finding.advice for finding in found)
    assert verdict.findings[:1] == tuple(found[:1]), (
        "the fault of the marked line is not the first root"
    )
    monkeypatch.chdir(ROOT)  # from which paths are shown
    _has_its_text(kernel, verdict, blessed)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", first_of_each(OF_INTENT, "hint"))
def test_a_wrong_value_has_its_text(
    kernel: BrokenKernel, blessed: Blessed, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verified(kernel, kernel.function, compared=True)
    monkeypatch.chdir(ROOT)
    _has_its_text(kernel, verdict, blessed)


def _has_its_text(kernel: BrokenKernel, verdict: Verdict, blessed: Blessed) -> None:
    """The texts are those of one release of jax and libtpu, which words some of the messages."""
    if jax.__version__ != OF_JAX:
        return
    shown = text(verdict)
    blessed(path(kernel), shown)
    assert all(len(one.splitlines()) <= MAX_LINES for one in shown.split("\n\n")), shown


@pytest.mark.parametrize("kernel", first_of_each(OF_INTENT, "hint"))
def test_hinted_at_and_not_accused(kernel: BrokenKernel) -> None:
    verdict = verified(kernel, kernel.function)
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    if kernel.hint is not None:
        assert kernel.hint in {hint.kind for hint in verdict.hints}, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", first_of_each(ALL, "topic"))
def test_nothing_is_found_in_the_repaired_twin(kernel: BrokenKernel) -> None:
    verdict = verified(kernel, kernel.repaired, compared=True)
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    assert {outcome.status for outcome in verdict.outcomes} <= {"ok", "unsupported"}, str(verdict)
