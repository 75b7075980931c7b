"""Detection of a broken kernel for each fault, with its class and line."""

from __future__ import annotations

import jax
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction
from tiers import first_of_each_fault

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.verdict import Verdict, verify

OTHER_KINDS = {
    "mask_as_column": {Fault.UNSUPPORTED_SHAPE_CAST, Fault.COMPILER_ABORT},  # by release
}


def engines(kernel: BrokenKernel) -> str:
    """Engine that sees the fault, if the static analysis does not."""
    refused = any(
        kernel.expectation(engine, target=target).reaction is not Reaction.PASSES
        for engine in (JaxEngine.LOWER, JaxEngine.COMPILE)
        for target in kernel.targets
    )
    return "compile" if refused else "machine"


def judged(kernel: BrokenKernel, asked: str) -> Verdict:
    with jax.enable_x64(kernel.x64):
        args = kernel.make_args()
        return verify(kernel.function, *args, targets=kernel.targets, engines=asked, hang_after=2.0)


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


@pytest.mark.parametrize(
    "kernel", first_of_each_fault(k for k in BROKEN if k.fault != Fault.VALUE_MISMATCH)
)
def test_found_with_its_class_and_line(kernel: BrokenKernel) -> None:
    """By the static analysis, or, where that sees nothing, by those that take longer."""
    verdict = judged(kernel, "static")
    if not at_fault(kernel, verdict):
        verdict = judged(kernel, engines(kernel))
    found = at_fault(kernel, verdict)
    assert found, str(verdict)
    for finding in found:
        assert finding.cause, finding
        assert finding.advice, finding
