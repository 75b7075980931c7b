"""Detection of every broken kernel, with its class and line; no findings in its repaired twin.

Each is given to the engines that find it, so this is also the table of which engine finds what.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction
from tiers import first_of_each_fault

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.verdict import Verdict, verify

RACES = frozenset(
    {
        Fault.DATA_RACE,
        Fault.DMA_NOT_AWAITED,
        Fault.DEADLOCK,
        Fault.SEMAPHORE_LEFT_OVER,
        Fault.OUTPUT_REVISITED,
    }
)
"""Faults that TPU interpret mode sees; the static analysis sees most of them, too."""

OTHER_KINDS = {
    "mask_as_column": {Fault.UNSUPPORTED_SHAPE_CAST, Fault.COMPILER_ABORT},  # by release
    "chunks_summed_in_bfloat16": {Fault.LOW_PRECISION_ACCUMULATOR},  # before it runs
}

CRASHES = {"mask_as_column", "float_offset"}
"""Of which the compiler knows no line: it dies, or jax says them as errors of its own."""


def engines(kernel: BrokenKernel) -> str:
    """Who is asked of it besides the static analysis: those that see the fault."""
    refused = any(
        kernel.expectation(engine, target=target).reaction is not Reaction.PASSES
        for engine in (JaxEngine.LOWER, JaxEngine.COMPILE)
        for target in kernel.targets
    )
    if refused:
        return "compile"
    return "checks,races" if kernel.fault in RACES else "checks"


def judged(kernel: BrokenKernel, function: Callable[..., jax.Array], asked: str) -> Verdict:
    with jax.enable_x64(kernel.x64):
        return verify(
            function,
            *kernel.make_args(),
            targets=kernel.targets,
            engines=asked,
            hang_after=2.0,
        )


def at_fault(kernel: BrokenKernel, verdict: Verdict) -> list[Finding]:
    """The findings of the kernel's line that are of its class."""
    kinds = OTHER_KINDS.get(kernel.name, {Fault(kernel.fault)})
    return [
        finding
        for finding in verdict.findings
        if finding.source is not None
        and (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
        and Fault(finding.kind) in kinds
    ]


def is_wrong_here(kernel: BrokenKernel) -> bool:
    """Return whether a kernel is wrong here; some only fail to compile, in some releases."""
    if kernel.machine_only:
        return False  # only the kernel machine finds it
    return any(
        kernel.expectation(engine, target=target).reaction
        not in (Reaction.PASSES, Reaction.NOT_APPLICABLE)
        for engine in JaxEngine
        for target in kernel.targets
    ) or kernel.topic not in ("lowering", "alignment")


@pytest.mark.parametrize("kernel", first_of_each_fault(k for k in BROKEN if is_wrong_here(k)))
def test_found_with_its_class_and_line(kernel: BrokenKernel) -> None:
    """By the static analysis, or, where that sees nothing, by those that take longer."""
    verdict = judged(kernel, kernel.function, "static")
    if not at_fault(kernel, verdict):
        verdict = judged(kernel, kernel.function, engines(kernel))
    found = at_fault(kernel, verdict)
    assert found, str(verdict)
    for finding in found:
        assert finding.cause, finding
        assert finding.advice, finding


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [k for k in BROKEN if is_wrong_here(k) and (engines(k) == "checks" or k.name in CRASHES)],
    ids=lambda kernel: kernel.name,
)
def test_said_once_and_at_its_line_when_others_see_it_too(kernel: BrokenKernel) -> None:
    """What an engine knows less of the line, or of the operand, adds nothing of its own."""
    verdict = judged(kernel, kernel.function, f"static,{engines(kernel)}")
    assert list(verdict.findings) == at_fault(kernel, verdict), str(verdict)
    assert len(verdict.findings) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)
def test_nothing_is_found_in_the_twin(kernel: BrokenKernel) -> None:
    """Before it runs; that it compiles, and runs without a finding, is tested elsewhere."""
    verdict = judged(kernel, kernel.repaired, "static")
    assert verdict.ok, str(verdict)


def test_the_exceptions_are_still_needed() -> None:
    names = {kernel.name for kernel in BROKEN}
    assert set(OTHER_KINDS) <= names
    others = [kernel for kernel in BROKEN if not kernel.machine_only]
    assert sum(map(is_wrong_here, others)) >= len(others) - 3
