"""Entry point of the static analysis: all checks of one captured kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pallas_debug.analysis import (
    accesses,
    blocks,
    coverage,
    memory,
    operations,
    subject,
    tiling,
    unread,
    visits,
)
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs import mechanisms
from pallas_debug.bridge.walk import index_maps
from pallas_debug.bridge.walk.index_maps import NotReadable
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, Gap, Hint, Target

TIME_LIMIT = 10.0
"""Maximum seconds per kernel; checks not done by then are listed in `gaps`."""
_OF_WHOLE_OUTPUTS = (Fault.OUTPUT_NOT_WRITTEN, Fault.OUT_OF_BOUNDS_WRITE)
"""Faults of an output that make it pointless to examine its elements."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Facts about a kernel, found without running it.

    Attributes:
      findings: definite faults.
      hints: what looks unintended, but is no fault.
      gaps: what was not checked, and why.
      memory: lower bound of memory use on each target.
      is_judged: whether anything was checked; if not, `gaps` gives the reason.
    """

    findings: tuple[Finding, ...] = ()
    hints: tuple[Hint, ...] = ()
    gaps: tuple[Gap, ...] = ()
    memory: tuple[memory.MemoryUse, ...] = ()
    is_judged: bool = True


def analyze(
    captured: Capture,
    targets: Sequence[Target] = (),
    *,
    prefetch: Sequence[np.ndarray | None] | None = None,
    bounds: Sequence[np.ndarray | None] = (),
    time_limit: float = TIME_LIMIT,
) -> Analysis:
    """Analyse a captured kernel without running it.

    Args:
      captured: the kernel as the hook captured it.
      targets: chips to check memory and dtypes against; with none, neither is checked.
      prefetch: values of the scalar-prefetch operands, in order; None for an unknown operand, or if
        all are unknown. Index maps that read an unknown operand are not judged.
      bounds: sizes of the grid that the call passes, in order; None for unknown sizes. If any size
        is unknown, only checks that hold for every size are run: blocks, memory and operations.
      time_limit: time limit in seconds.

    Raises:
      ValueError: `prefetch` does not fit the kernel's scalar-prefetch operands.
    """
    deadline = time.monotonic() + time_limit
    if reason := mechanisms.refusal(captured.params):
        return Analysis(gaps=_gaps(captured, [reason], is_partial=False), is_judged=False)
    if index_maps.is_unsized(captured):
        sizes = [int(size) for size in bounds if size is not None]
        if not bounds or len(sizes) < len(bounds):
            return _of_any_size(captured, targets, deadline)
        captured = index_maps.with_grid(captured, sizes)
    try:
        tables = _tables(captured, prefetch)
        kernel = subject.read(captured, tables, deadline)
    except NotReadable as error:
        return Analysis(gaps=_gaps(captured, [str(error)], is_partial=False), is_judged=False)
    left_out = []
    if 0 in kernel.grid.sizes:
        left_out.append("index maps and accesses: its grid has no points")
    if kernel.walked.incomplete:
        left_out.append(f"the whole kernel: {kernel.walked.incomplete}")
    used, uses = memory.look(kernel, targets)
    results = [
        blocks.look(kernel),
        visits.look(kernel),
        tiling.look(kernel),
        used,
        accesses.look(kernel),
        operations.look(kernel, targets),
    ]
    written_elsewhere = {
        finding.operand or ""
        for result in results
        for finding in result.findings
        if finding.kind in _OF_WHOLE_OUTPUTS
    }
    results.append(coverage.look(kernel, written_elsewhere))
    return _analysis(captured, results, left_out, unread.hints(kernel), uses)


def _analysis(
    captured: Capture,
    results: Sequence[subject.Result],
    left_out: Iterable[str],
    hints: Iterable[Hint] = (),
    uses: tuple[memory.MemoryUse, ...] = (),
) -> Analysis:
    reasons = [*(reason for result in results for reason in result.left_out), *left_out]
    return Analysis(
        findings=Collector(f for result in results for f in result.findings).findings,
        hints=tuple(hints),
        gaps=_gaps(captured, reasons, is_partial=True),
        memory=uses,
    )


def _of_any_size(captured: Capture, targets: Sequence[Target], deadline: float) -> Analysis:
    """Analyse one step of a grid of unknown size: its findings hold for every size but 0."""
    count = captured.kernel.grid.count(None)
    try:
        kernel = subject.read(index_maps.with_grid(captured, [1] * count), {}, deadline)
    except NotReadable as error:
        return Analysis(gaps=_gaps(captured, [str(error)], is_partial=False), is_judged=False)
    used, uses = memory.look(kernel, targets)
    results = [tiling.look(kernel), used, operations.look(kernel, targets)]
    left_out = [f"index maps and accesses: {index_maps.UNSIZED}, and it was not given"]
    return _analysis(captured, results, left_out, (), uses)


def _gaps(captured: Capture, reasons: Iterable[str], *, is_partial: bool) -> tuple[Gap, ...]:
    name = captured.kernel.name
    return tuple(
        Gap(kernel=name, engine="static", reason=reason, is_limit=True, is_partial=is_partial)
        for reason in dict.fromkeys(reasons)
    )


def _tables(
    captured: Capture, prefetch: Sequence[np.ndarray | None] | None
) -> dict[int, np.ndarray]:
    """Known scalar-prefetch values, by position."""
    if prefetch is None:
        return {}
    wanted = captured.kernel.of_kind("scalar_prefetch")
    given = [None if values is None else np.asarray(values) for values in prefetch]
    fits = len(given) == len(wanted) and all(
        values is None or values.shape == operand.shape
        for values, operand in zip(given, wanted, strict=True)
    )
    if not fits:
        raise ValueError(
            f"kernel `{captured.kernel.name}` takes scalar prefetch of shapes "
            f"{[operand.shape for operand in wanted]}, but prefetch= has shapes "
            f"{[None if values is None else values.shape for values in given]}. Pass one array "
            "for each, in the same order, and None for unknown ones."
        )
    return {i: values for i, values in enumerate(given) if values is not None}
