"""The checks find each kernel that is wrong on purpose, at its line, and nothing in its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import broken_kernels
import jax
import numpy as np
import pytest
from broken_kernels import BROKEN, BrokenKernel, Fault, JaxEngine, Reaction
from tiers import slow_but_first

import pallas_debug
from pallas_debug.errors import KernelFault
from pallas_debug.model import Finding

ENGINES = {"hlo": JaxEngine.HLO, "tpu": JaxEngine.TPU}

KINDS = {
    Fault.OUT_OF_BOUNDS_READ: "OutOfBoundsRead",
    Fault.OUT_OF_BOUNDS_WRITE: "OutOfBoundsWrite",
    Fault.BLOCK_INDEX_OUT_OF_BOUNDS: "BlockOutOfBounds",
    Fault.ELEMENT_OFFSET_AS_BLOCK_INDEX: "BlockOutOfBounds",
    Fault.UNINITIALIZED_SCRATCH: "UninitializedRead",
    Fault.UNINITIALIZED_OUTPUT: "OutputNotWritten",
    Fault.RAGGED_PADDING: "PaddingRead",
    Fault.FALSE_MULTIPLE_OF: "FalseHint",
    Fault.DEBUG_CHECK_FAILED: "CheckFailed",
    Fault.NAN_FROM_MASKED_ROW: "NanProduced",
    Fault.NAN_FROM_OVERFLOW: "NanProduced",
    Fault.NAN_FROM_LOG_OF_ZERO: "NanProduced",
    Fault.DIVISION_BY_ZERO: "DivisionByZero",
}
"""What a check makes of a class of faults; it sees no others."""

OTHER_KINDS = {
    "output_never_zeroed": "UninitializedRead",  # the kernel reads its output to add to it
    "mean_of_nothing": "NanProduced",  # 0 / 0 of floats
}

UNSEEN = {
    ("counter_never_zeroed", "hlo"): "integers hold no NaN that would tell them from written ones",
    ("counter_never_zeroed", "tpu"): "integers hold no NaN that would tell them from written ones",
    ("parallel_scratch_carried", "hlo"): "one core runs all slices, in the order that it needs",
    ("parallel_scratch_carried", "tpu"): "one core runs all slices, in the order that it needs",
    ("output_block_skipped", "tpu"): "the interpreter leaves the block before in the buffer",
}
"""Faults of those classes that no check finds, and why."""

OTHER_LINES = {
    "softmax_without_maximum": (1, "the NaN is made below the overflow, which `inf` finds"),
}
"""How far below the marked line the finding points, and why."""

ALSO_SEEN = {
    ("read_before_wait", "tpu"): "UninitializedRead",
    ("waits_for_the_other_copy", "tpu"): "UninitializedRead",
}
"""Races that show, in one order of events, as a read of what nobody has written yet."""


def expected(kernel: BrokenKernel, mode: str) -> str | None:
    """The kind that the checks are to find."""
    if (kernel.name, mode) in UNSEEN:
        return None
    if (kernel.name, mode) in ALSO_SEEN:
        return ALSO_SEEN[kernel.name, mode]
    return OTHER_KINDS.get(kernel.name, KINDS.get(kernel.fault))


def is_run(kernel: BrokenKernel, mode: str) -> bool:
    """Whether a mode runs it at all; what only hangs is the watchdog's."""
    outcome = kernel.expectation(ENGINES[mode]).reaction
    return outcome not in (Reaction.NOT_APPLICABLE, Reaction.HANGS)


def found(
    kernel: BrokenKernel, function: Callable[..., jax.Array], mode: str, errors: str | None = None
) -> list[Finding]:
    """What the checks, or else the interpreter that stopped the program, say."""
    checks = {} if errors is None else {"errors": errors}
    checked = pallas_debug.check(function, interpret=mode, **checks)  # type: ignore[arg-type]
    with jax.enable_x64(kernel.x64):
        try:
            report, _ = checked(*kernel.make_args())
        except KernelFault as fault:
            return [fault.finding]
    assert not report.not_checked
    return list(report.findings)


def cases(modes: tuple[str, ...] = ("hlo", "tpu"), *, seen: bool) -> list[Any]:
    """Slow but the first for each kind of finding and mode."""
    found = [
        pytest.param(kernel, mode, id=f"{kernel.name}-{mode}")
        for kernel in BROKEN
        for mode in modes
        if is_run(kernel, mode) and bool(expected(kernel, mode)) == seen
    ]
    return slow_but_first(found, lambda kernel, mode: (mode, expected(kernel, mode)))


@pytest.mark.parametrize("kernel, mode", cases(seen=True))
def test_found_at_its_line(kernel: BrokenKernel, mode: str) -> None:
    (finding,) = found(kernel, kernel.function, mode)
    assert finding.kind == expected(kernel, mode)
    assert finding.source is not None
    assert finding.source.file == kernel.file
    below, _ = OTHER_LINES.get(kernel.name, (0, ""))
    assert finding.source.line == kernel.line + below
    assert finding.message
    assert finding.advice


@pytest.mark.slow
@pytest.mark.parametrize("kernel, mode", cases(("hlo",), seen=False))
def test_nothing_is_said_of_what_no_check_sees(kernel: BrokenKernel, mode: str) -> None:
    assert found(kernel, kernel.function, mode) == []


def by_topic(kernels: Iterable[BrokenKernel]) -> list[Any]:
    """Slow but the first of each topic."""
    return slow_but_first(
        [pytest.param(kernel, id=kernel.name) for kernel in kernels],
        lambda kernel: kernel.topic,
    )


@pytest.mark.usefixtures("quick_to_compile")
@pytest.mark.parametrize("kernel", by_topic(BROKEN))
def test_the_twin_is_fully_checked_and_sound(kernel: BrokenKernel) -> None:
    args = kernel.make_args()
    with jax.enable_x64(kernel.x64):
        with pallas_debug.interpret("hlo"):
            unchecked = jax.block_until_ready(jax.jit(kernel.repaired)(*args))
        report, out = pallas_debug.check(jax.jit(kernel.repaired), interpret="hlo")(*args)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, unchecked)


SEEN_TOPICS = ("bounds", "initialization", "hints", "numerics")


@pytest.mark.parametrize(
    "kernel", by_topic(kernel for kernel in BROKEN if kernel.topic in SEEN_TOPICS)
)
def test_the_twin_is_sound_in_tpu_interpret_mode(kernel: BrokenKernel) -> None:
    assert found(kernel, kernel.repaired, "tpu") == []


def test_the_overflow_itself_is_found_by_inf() -> None:
    kernel = broken_kernels.broken("softmax_without_maximum")
    first, *_ = found(kernel, kernel.function, "hlo", errors="inf")
    assert first.kind == "InfinityProduced"
    assert first.source is not None
    assert first.source.line == kernel.line


def test_every_kernel_of_the_topics_is_found_or_excused() -> None:
    no_fault_of_values = {"check_without_debug", "bfloat16_accumulator"}
    unseen = {name for name, _ in UNSEEN}
    for kernel in BROKEN:
        if kernel.topic in SEEN_TOPICS and kernel.name not in no_fault_of_values | unseen:
            assert expected(kernel, "hlo"), kernel.name


def test_the_exceptions_are_still_needed() -> None:
    names = {kernel.name for kernel in BROKEN}
    assert {name for name, _ in UNSEEN} <= names
    assert {name for name, _ in ALSO_SEEN} <= names
    assert set(OTHER_LINES) | set(OTHER_KINDS) <= names
