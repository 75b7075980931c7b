"""Every kernel that is wrong on purpose is found, with its class and line; nothing in its twin.

Each is put to the engines that find it, so that the table of who finds what stands here too.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
from pallas_debug_kernels.broken import BROKEN, BrokenKernel, Engine, Fault, Outcome

from pallas_debug.findings.faults import named
from pallas_debug.model import Finding
from pallas_debug.verdict import Verdict, verify

RACES = frozenset(
    {
        Fault.DMA_READ_BEFORE_WAIT,
        Fault.DMA_BUFFER_REUSED,
        Fault.DMA_NOT_AWAITED,
        Fault.DMA_WAITED_TWICE,
        Fault.SEMAPHORE_LEFT_OVER,
        Fault.SEMAPHORE_NEVER_SIGNALLED,
        Fault.NON_CONSECUTIVE_REVISIT,
    }
)
"""Classes that TPU interpret mode sees; the static analysis sees most of them, too."""

KINDS = {
    Fault.DMA_READ_BEFORE_WAIT: "DataRace",
    Fault.DMA_BUFFER_REUSED: "DataRace",
    Fault.NAN_FROM_MASKED_ROW: "NanProduced",
    Fault.NAN_FROM_LOG_OF_ZERO: "NanProduced",
    Fault.NAN_FROM_OVERFLOW: "InfinityProduced",
    Fault.VMEM_CAPACITY: "VmemOverflow",
}
"""What a class of faults is called by who finds it, where merge.py does not say it."""

OTHER_KINDS = {
    "output_never_zeroed": {"UninitializedRead"},  # the kernel reads its output to add to it
    "mean_of_nothing": {"NanProduced"},  # 0 / 0 of floats
    "mask_as_column": {"UnsupportedShapeCast", "CompilerAbort"},  # only some releases abort
}

CRASHES = {"mask_as_column", "float_offset"}
"""Of which the compiler knows no line: it dies, or jax says them as errors of its own."""


def engines(kernel: BrokenKernel) -> str:
    """Who is asked of it besides the static analysis: those that see the fault."""
    refused = any(
        kernel.verdict(engine, target=target).outcome is not Outcome.PASSES
        for engine in (Engine.LOWER, Engine.COMPILE)
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
    kinds = OTHER_KINDS.get(kernel.name) or {KINDS.get(kernel.fault) or named(str(kernel.fault))}
    return [
        finding
        for finding in verdict.findings
        if finding.source is not None
        and (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
        and finding.kind in kinds
    ]


def is_wrong_here(kernel: BrokenKernel) -> bool:
    """Whether the installed jax and libtpu mind: some only fail to compile, in some releases."""
    return any(
        kernel.verdict(engine, target=target).outcome
        not in (Outcome.PASSES, Outcome.NOT_APPLICABLE)
        for engine in Engine
        for target in kernel.targets
    ) or kernel.topic not in ("lowering", "alignment")


@pytest.mark.parametrize(
    "kernel", [k for k in BROKEN if is_wrong_here(k)], ids=lambda kernel: kernel.name
)
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
    assert sum(map(is_wrong_here, BROKEN)) >= len(BROKEN) - 3
