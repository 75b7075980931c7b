"""Findings of the checks: each broken kernel at its faulty line, none in its twin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction, broken
from evidence import Evidence
from tiers import mark_all_but_first

from pallas_debug.findings.faults import Fault

UNSEEN = {
    ("counter_never_zeroed", "tpu"): "integers hold no NaN that would tell them from written ones",
    ("parallel_scratch_carried", "hlo"): "one core runs all slices, in the order that it needs",
    ("parallel_scratch_carried", "tpu"): "one core runs all slices, in the order that it needs",
    ("offset_carried_over_parallel_rows", "hlo"): "one core runs all slices",
    ("offset_carried_over_parallel_rows", "tpu"): "one core runs all slices",
    ("counts_zeroed_for_nonempty_sequences", "tpu"): "integers hold no NaN",
    ("rows_past_the_length_not_written", "tpu"): "integers hold no NaN",
    ("one_row_of_padding", "hlo"): "integers hold no NaN",
    ("one_row_of_padding", "tpu"): "integers hold no NaN",
    ("output_block_skipped", "tpu"): "the interpreter leaves the block before in the buffer",
}
"""Faults that the checks know and do not find, and why."""

OTHER_LINES = {
    "softmax_without_maximum": (1, "the NaN is made below the overflow, which `inf` finds"),
}
"""How far below the faulty line the finding points, and why."""

NOT_RUN = {"page_table_too_large": "no chip has so much SMEM, and the check ends before it runs"}
"""Faults that the checks report although another engine finds them, and why."""

ALSO_SEEN = {
    ("read_before_wait", "tpu"): Fault.UNINITIALIZED_READ,
    ("waits_for_the_other_copy", "tpu"): Fault.UNINITIALIZED_READ,
    ("softmax_without_maximum", "hlo"): Fault.NAN_PRODUCED,
    ("softmax_without_maximum", "tpu"): Fault.NAN_PRODUCED,
}
"""Races that show, in one order of events, as a read of memory that nothing has written yet; and a
NaN that follows from an infinity, which is looked for on demand."""


def expected(kernel: BrokenKernel, mode: str) -> Fault | None:
    """The fault that the checks are to find."""
    if (kernel.name, mode) in UNSEEN:
        return None
    fault = ALSO_SEEN.get((kernel.name, mode), Fault(kernel.fault))
    return fault if "checks" in fault.judges or kernel.name in NOT_RUN else None


def is_run(kernel: BrokenKernel, mode: str) -> bool:
    """Return whether a mode runs it to an end."""
    reaction = kernel.expectation(JaxEngine(mode)).reaction
    return reaction not in (Reaction.NOT_APPLICABLE, Reaction.HANGS)


def cases(modes: tuple[str, ...] = ("hlo", "tpu"), *, seen: bool) -> list[Any]:
    """Slow but the first for each fault, and one for each topic in TPU interpret mode."""
    found = [
        pytest.param(kernel, mode, id=f"{kernel.name}-{mode}")
        for kernel in BROKEN
        for mode in modes
        if is_run(kernel, mode) and bool(expected(kernel, mode)) == seen
    ]
    return mark_all_but_first(
        found,
        lambda kernel, mode: expected(kernel, mode) if mode == "hlo" else kernel.topic,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel, mode", cases(seen=True))
def test_found_at_its_line(evidence: Evidence, kernel: BrokenKernel, mode: str) -> None:
    checked = evidence.checked(kernel, mode)
    assert not checked.gaps
    (finding,) = checked.findings
    assert Fault(finding.kind) is expected(kernel, mode)
    assert finding.source is not None
    assert finding.source.file == kernel.file
    below, _ = OTHER_LINES.get(kernel.name, (0, ""))
    assert finding.source.line == kernel.line + below
    assert finding.message
    assert finding.advice


@pytest.mark.slow
@pytest.mark.parametrize("kernel, mode", cases(("hlo",), seen=False))
def test_no_finding_where_no_check_sees_the_fault(
    evidence: Evidence, kernel: BrokenKernel, mode: str
) -> None:
    checked = evidence.checked(kernel, mode)
    assert (checked.findings, checked.gaps) == ((), ())


def by_topic(kernels: Iterable[BrokenKernel]) -> list[Any]:
    """Slow but the first of each topic."""
    return mark_all_but_first(
        [pytest.param(kernel, id=kernel.name) for kernel in kernels],
        lambda kernel: kernel.topic,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", by_topic(BROKEN))
def test_the_twin_is_fully_checked_and_sound(evidence: Evidence, kernel: BrokenKernel) -> None:
    unchecked = evidence.native(kernel, JaxEngine.HLO, repaired=True)
    checked = evidence.checked(kernel, "hlo", repaired=True)
    assert checked.error is None
    assert (checked.findings, checked.gaps) == ((), ())
    assert unchecked.value is not None
    np.testing.assert_array_equal(checked.value, unchecked.value)


SEEN_TOPICS = ("bounds", "initialization", "hints", "numerics")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", by_topic(kernel for kernel in BROKEN if kernel.topic in SEEN_TOPICS)
)
def test_the_twin_is_sound_in_tpu_interpret_mode(evidence: Evidence, kernel: BrokenKernel) -> None:
    checked = evidence.checked(kernel, "tpu", repaired=True)
    assert (checked.error, checked.findings, checked.gaps) == (None, (), ())


@pytest.mark.slow
def test_the_overflow_itself_is_found_by_inf(evidence: Evidence) -> None:
    kernel = broken("softmax_without_maximum")
    for errors in ("inf", "nan,inf", "all"):
        (first,) = evidence.checked(kernel, "hlo", errors=errors).findings
        assert first.kind == kernel.fault == "InfinityProduced"
        assert first.source is not None
        assert first.source.line == kernel.line
        following = [] if errors == "inf" else ["NanProduced"]
        assert [finding.kind for finding in first.consequences] == following


def test_every_kernel_of_the_topics_is_found_or_excused() -> None:
    no_fault_of_values = {
        *("check_without_debug", "bfloat16_accumulator", "sum_over_whole_blocks"),
        "group_offsets_by_a_product",
    }
    unseen = {name for name, _ in UNSEEN}
    for kernel in BROKEN:
        if kernel.topic in SEEN_TOPICS and kernel.name not in no_fault_of_values | unseen:
            assert expected(kernel, "hlo"), kernel.name


def test_the_exceptions_are_still_needed() -> None:
    names = {kernel.name for kernel in BROKEN}
    assert {name for name, _ in UNSEEN} <= names
    assert {name for name, _ in ALSO_SEEN} <= names
    assert set(OTHER_LINES) <= names
