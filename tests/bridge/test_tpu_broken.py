"""Findings of TPU interpret mode: each broken kernel at its faulty line, none in its twin."""

from __future__ import annotations

import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction
from evidence import Evidence
from tiers import mark_all_but_first

from pallas_debug.findings.faults import Fault
from pallas_debug.render import finding_text

MODES = (JaxEngine.TPU, JaxEngine.TPU_RACES)
NOT_AT_THE_MARKER = {
    "parallel_sum": "the index map of the block specification is at the module's top",
    "parallel_last_one_wins": "the index map of the block specification is at the module's top",
}
"""Kernels whose finding names another line than the marked one, and why."""


def is_found(kernel: BrokenKernel, engine: JaxEngine) -> bool:
    """Return whether jax raises, prints, hangs, or leaves a copy that is never awaited."""
    speaks = (Reaction.RAISES, Reaction.PRINTS, Reaction.HANGS)
    reaction = kernel.expectation(engine).reaction
    return reaction in speaks or kernel.fault == Fault.DMA_NOT_AWAITED


TWO_CORES = ("grid", "dma", "semaphores")
"""Topics in which a second core or race detection may change what is found; for others only what
plain TPU interpret mode reports is checked again."""


def is_asked(kernel: BrokenKernel, engine: JaxEngine) -> bool:
    return engine is JaxEngine.TPU or kernel.topic in TWO_CORES or is_found(kernel, engine)


CASES = mark_all_but_first(
    [
        pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
        for kernel in BROKEN
        for engine in MODES
        if kernel.expectation(engine).reaction is not Reaction.NOT_APPLICABLE
        and is_asked(kernel, engine)
    ],
    # Each fault once, a race of each engine's, and one kernel without a finding.
    lambda kernel, engine: (
        (kernel.fault, engine if kernel.topic == "semaphores" else None)
        if is_found(kernel, engine)
        else engine
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("kernel, engine", CASES)
def test_broken(evidence: Evidence, kernel: BrokenKernel, engine: JaxEngine) -> None:
    ran = evidence.interpreted(kernel, engine)
    reaction = kernel.expectation(engine).reaction
    assert (ran.error is not None) == (reaction in (Reaction.RAISES, Reaction.HANGS))
    assert ran.printed == ""
    if not is_found(kernel, engine):
        assert ran.findings == ()
        return
    (finding,) = ran.findings
    assert Fault(finding.kind) == kernel.fault
    assert finding.engines == ("tpu interpret",)
    assert finding.cause or kernel.fault in (Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE)
    assert finding.advice
    assert finding.source is not None
    assert finding.source.file == kernel.file
    if kernel.name in NOT_AT_THE_MARKER:
        assert finding.source.line != kernel.line
    else:
        assert finding.source.line == kernel.line
        assert finding.source.text is not None
        assert finding.source.text.endswith("# FAULT")
    if ran.error is not None and kernel.fault != Fault.UNSUPPORTED_CHECK:
        assert finding_text(finding) in ran.error


@pytest.mark.parametrize(
    "kernel, engine",
    mark_all_but_first(
        [
            pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
            for kernel in BROKEN
            for engine in MODES
            if is_found(kernel, engine) or kernel.topic in TWO_CORES
        ],
        lambda kernel, engine: kernel.topic if kernel.topic in TWO_CORES else engine,
    ),
)
def test_repaired(evidence: Evidence, kernel: BrokenKernel, engine: JaxEngine) -> None:
    ran = evidence.interpreted(kernel, engine, repaired=True)
    assert (ran.findings, ran.error, ran.printed) == ((), None, "")


def test_the_exceptions_are_still_needed() -> None:
    assert set(NOT_AT_THE_MARKER) <= {kernel.name for kernel in BROKEN}
