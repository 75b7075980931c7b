"""Each kernel that is wrong on purpose: TPU interpret mode finds its line, and none in its twin."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BROKEN, BrokenKernel, Engine, Fault, Outcome
from tiers import slow_but_first

from pallas_debug.bridge.interpret import tpu_interpret
from pallas_debug.model import Finding
from pallas_debug.report import finding_text

pytestmark = pytest.mark.usefixtures("quick_to_compile")

HANG_AFTER = 1.0
MODES = {
    Engine.TPU: pltpu.InterpretParams(),
    Engine.TPU_RACES: pltpu.InterpretParams(
        detect_races=True,
        num_cores_or_threads=2,
        # With few clocks jax misses every second race between two copies.
        vector_clock_size=1024,
    ),
}
NOT_AT_THE_MARKER = {
    "parallel_sum": "the index map of the block specification stands at the module's top",
    "parallel_last_one_wins": "the index map of the block specification stands at the module's top",
}
"""Whose finding names another line than the one marked, and why."""

KINDS = {
    Fault.OUT_OF_BOUNDS_READ: "OutOfBoundsRead",
    Fault.OUT_OF_BOUNDS_WRITE: "OutOfBoundsWrite",
    Fault.BLOCK_INDEX_OUT_OF_BOUNDS: "BlockOutOfBounds",
    Fault.ELEMENT_OFFSET_AS_BLOCK_INDEX: "BlockOutOfBounds",
    Fault.NON_CONSECUTIVE_REVISIT: "OutputRevisited",
    Fault.PARALLEL_REVISIT: "DataRace",
    Fault.DMA_READ_BEFORE_WAIT: "DataRace",
    Fault.DMA_BUFFER_REUSED: "DataRace",
    Fault.DMA_NOT_AWAITED: "DmaNotAwaited",
    Fault.DMA_WAITED_TWICE: "Deadlock",
    Fault.SEMAPHORE_LEFT_OVER: "SemaphoreLeftOver",
    Fault.SEMAPHORE_NEVER_SIGNALLED: "Deadlock",
    Fault.DIRECT_HBM_ACCESS: "DirectHbmAccess",
    Fault.UNSUPPORTED_CHECK: "UnsupportedCheck",
}


def is_found(kernel: BrokenKernel, engine: Engine) -> bool:
    """jax raises, prints or hangs today, or says nothing of a copy that is never awaited."""
    speaks = kernel.verdict(engine).outcome in (Outcome.RAISES, Outcome.PRINTS, Outcome.HANGS)
    return speaks or kernel.fault is Fault.DMA_NOT_AWAITED


TWO_CORES = ("grid", "dma", "semaphores")
"""Topics in which a second core or the look for races may change what is found; for others only
what is found in plain TPU interpret mode is looked for again."""


def is_asked(kernel: BrokenKernel, engine: Engine) -> bool:
    return engine is Engine.TPU or kernel.topic in TWO_CORES or is_found(kernel, engine)


CASES = slow_but_first(
    [
        pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
        for kernel in BROKEN
        for engine in MODES
        if kernel.verdict(engine).outcome is not Outcome.NOT_APPLICABLE and is_asked(kernel, engine)
    ],
    # Each kind of finding once, and nothing found in one kernel of each topic.
    lambda kernel, engine: (
        (engine, KINDS[kernel.fault]) if is_found(kernel, engine) else kernel.topic
    ),
)


def run(
    kernel: BrokenKernel, function: Callable[..., jax.Array], engine: Engine
) -> tuple[list[Finding], Exception | None]:
    found: list[Finding] = []
    with (
        jax.enable_x64(kernel.x64),
        tpu_interpret.reporting(found.append, hang_after=HANG_AFTER),
        pltpu.force_tpu_interpret_mode(MODES[engine]),
    ):
        try:
            jax.block_until_ready(jax.jit(function)(*kernel.make_args()))
        except Exception as error:  # noqa: BLE001 - the tests look at it
            return found, error
    return found, None


@pytest.mark.parametrize("kernel, engine", CASES)
def test_broken(kernel: BrokenKernel, engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    findings, error = run(kernel, kernel.function, engine)
    outcome = kernel.verdict(engine).outcome
    assert (error is not None) == (outcome in (Outcome.RAISES, Outcome.HANGS))
    assert capfd.readouterr().out == ""
    if not is_found(kernel, engine):
        assert findings == []
        return
    (finding,) = findings
    assert finding.kind == KINDS[kernel.fault]
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
    if error is not None and kernel.fault is not Fault.UNSUPPORTED_CHECK:
        assert finding_text(finding) in str(error)


@pytest.mark.parametrize(
    "kernel, engine",
    slow_but_first(
        [
            pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
            for kernel in BROKEN
            for engine in MODES
            if is_found(kernel, engine) or kernel.topic in ("grid", "dma", "semaphores")
        ],
        lambda kernel, engine: (kernel.topic, engine),
    ),
)
def test_repaired(kernel: BrokenKernel, engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(kernel, kernel.repaired, engine) == ([], None)
    assert capfd.readouterr().out == ""


def test_the_exceptions_are_still_needed() -> None:
    assert set(NOT_AT_THE_MARKER) <= {kernel.name for kernel in BROKEN}
