"""Static analysis of each broken kernel, with no findings in its repaired twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from broken_kernels import BROKEN, BrokenKernel

from pallas_debug.analysis import Analysis, analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.versions import installed
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.findings.faults import Fault

LIBTPU = tuple(map(int, re.findall(r"\d+", installed()["libtpu"])[:3]))

UNSEEN = {
    "rows_past_the_length_not_written": "a table in SMEM holds the lengths",
    "last_entry_past_the_rows": "a table in SMEM holds the entry",
    "read_before_wait": "a race with a copy shows only as the kernel runs",
    "single_buffer_prefetch": "a race with a copy shows only as the kernel runs",
    "source_overwritten": "a race with a copy shows only as the kernel runs",
}
"""Faults of kinds that the static analysis knows, which it cannot see in these kernels."""

if LIBTPU >= (0, 0, 50):
    UNSEEN["int8_block_of_eight_rows"] = "this libtpu takes it"

TRACED = [kernel for kernel in BROKEN if kernel.is_traced]
"""jax refuses the others while it traces: there is no kernel to look at."""


def is_seen(kernel: BrokenKernel) -> bool:
    return "static" in Fault(kernel.fault).engines and kernel.name not in UNSEEN


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


@pytest.mark.parametrize("kernel", list(filter(is_seen, TRACED)), ids=lambda kernel: kernel.name)
def test_found_at_its_line(captures: Callable[..., list[Capture]], kernel: BrokenKernel) -> None:
    (captured,) = captures(kernel.function, kernel.args, x64=kernel.x64)
    analysis = analyze(captured, BUILTIN, prefetch=tables(kernel, captured))
    (finding,) = analysis.findings
    assert (finding.kind, finding.kernel) == (kernel.fault, captured.kernel.name)
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == (kernel.file, kernel.line)
    assert finding.engines == ("static",)
    assert analysis.gaps == ()


@pytest.mark.parametrize(
    "kernel", [b for b in TRACED if not is_seen(b)], ids=lambda kernel: kernel.name
)
def test_nothing_is_found_where_only_a_run_shows_the_fault(
    captures: Callable[..., list[Capture]], kernel: BrokenKernel
) -> None:
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
