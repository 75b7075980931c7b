"""Static analysis of each broken kernel, with no findings in its repaired twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction

from pallas_debug.analysis import Analysis, analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.versions import installed
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.findings.faults import Fault

LIBTPU = tuple(map(int, re.findall(r"\d+", installed()["libtpu"])[:3]))

UNSEEN = {
    "softmax_of_masked_row": "which rows are masked is in the values",
    "softmax_without_maximum": "how large the values are",
    "entropy_of_zero": "whether a probability is zero",
    "mean_of_nothing": "whether a row has entries",
    "halves_nothing": "whether a loop ends",
    "search_that_does_not_narrow": "whether a loop ends",
    "running_maximum_of_a_masked_block": "which rows are masked is in the values",
    "tokens_over_an_empty_group": "which groups of a table are empty",
    "integer_division_by_zero": "whether a divisor is zero",
    "flatten": "which reshapes a compiler has is its own affair",
    "counts_zeroed_for_nonempty_sequences": "which sequences are empty",
    "rows_past_the_length_not_written": "how long the sequences are",
    "last_entry_past_the_rows": "what a table in SMEM holds",
    "split_lanes": "which reshapes a compiler has is its own affair",
}
"""Faults that only the values or the compiler show."""

OTHER_KINDS = {
    "mask_as_column": Fault.UNSUPPORTED_SHAPE_CAST,  # what the compiler dies of
    "chunks_summed_in_bfloat16": Fault.LOW_PRECISION_ACCUMULATOR,  # it may lose too much
}

if LIBTPU >= (0, 0, 50):
    UNSEEN["int8_block_of_eight_rows"] = "this libtpu takes it"

TRACED = [b for b in BROKEN if b.expectation(JaxEngine.TRACE).reaction is Reaction.PASSES]
"""jax refuses the others while it traces: there is no kernel to look at."""

UNSEEN |= {
    kernel.name: "who wrote what, or how far padding goes, is known only as the kernel runs"
    for kernel in TRACED
    if kernel.machine_only
}


def analyses(
    captures: Callable[..., list[Capture]], kernel: BrokenKernel, function: Callable[..., Any]
) -> list[Analysis]:
    """Of the kernels of a call, for all targets, with the scalar prefetch that it is given."""
    return [
        analyze(captured, BUILTIN, prefetch=tables(kernel, captured))
        for captured in captures(function, kernel.args, x64=kernel.x64)
    ]


def tables(kernel: BrokenKernel, captured: Capture) -> list[np.ndarray] | None:
    """The first arguments are the tables; a repaired twin may cut one, or make its own."""
    wanted = captured.kernel.of_kind("scalar_prefetch")
    given = [np.asarray(x) for x in kernel.make_args()[: len(wanted)]]
    fitting = [
        x if x.shape == operand.shape else np.resize(x.astype("int32") * 0, operand.shape)
        for x, operand in zip(given, wanted, strict=True)
    ]
    return fitting or None


@pytest.mark.parametrize(
    "kernel", [b for b in TRACED if b.name not in UNSEEN], ids=lambda kernel: kernel.name
)
def test_found_at_its_line(captures: Callable[..., list[Capture]], kernel: BrokenKernel) -> None:
    (captured,) = captures(kernel.function, kernel.args, x64=kernel.x64)
    analysis = analyze(captured, BUILTIN, prefetch=tables(kernel, captured))
    (finding,) = analysis.findings
    kind = OTHER_KINDS.get(kernel.name, Fault(kernel.fault))
    assert (Fault(finding.kind), finding.kernel) == (kind, captured.kernel.name)
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
    assert finding.engines == ("static",)
    assert analysis.gaps == ()


@pytest.mark.parametrize("name", UNSEEN)
def test_nothing_is_said_of_what_only_the_values_or_the_compiler_show(
    captures: Callable[..., list[Capture]], name: str
) -> None:
    (kernel,) = [b for b in TRACED if b.name == name]
    (analysis,) = analyses(captures, kernel, kernel.function)
    assert analysis.findings == ()


@pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)
def test_nothing_is_found_in_the_repaired_twin(
    captures: Callable[..., list[Capture]], kernel: BrokenKernel
) -> None:
    found = analyses(captures, kernel, kernel.repaired)
    assert found
    assert [finding for analysis in found for finding in analysis.findings] == []
    assert [gap for analysis in found for gap in analysis.gaps] == []
