"""Outputs of kernels that nothing uses, and so need not be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pallas_debug import guards
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk.dataflow import unused
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings import outputs
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.outputs import Dropped
from pallas_debug.model import Finding, Target
from pallas_debug.session import Session
from pallas_debug.verdict.engines import Call, Seen


def without_unused(
    seen: Sequence[Seen],
    call: Call,
    captures: Sequence[Capture],
    target: Target,
    problems: list[str],
) -> list[Seen]:
    """Leave out unwritten outputs of which the function uses nothing.

    Args:
      problems: gets a sentence if that could not be determined; then it depends on each program
        within the function.
    """
    unwritten = _unwritten(finding for one in seen for finding in one.findings)
    if not unwritten:
        return list(seen)
    failed: list[PallasDebugError] = []
    names = dropped(
        call.function, call.args, call.kwargs, captures, target, unwritten, failed.append
    )
    problems += map(str, failed)
    if names is None:
        return list(seen)
    return [*(one.without_unwritten(names) for one in seen), Seen(dropped=names)]


def resolved(
    findings: Sequence[Finding],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    session: Session,
) -> tuple[Finding, ...]:
    """Determine what findings depend on by the function that calls the kernels, if it is traceable.

    Its results count as used.
    """
    unwritten = _unwritten(finding for finding in findings if finding.only_if)
    target = session.chip
    if not unwritten or target is None:
        return tuple(findings)
    names = dropped(
        function, args, kwargs, session.captures, target, unwritten, lambda problem: None
    )
    if names is None:
        return tuple(findings)
    return Seen(findings=tuple(findings)).without_unwritten(names).findings


def dropped(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    captures: Sequence[Capture],
    target: Target,
    unwritten: Iterable[Dropped],
    report: Callable[[PallasDebugError], None],
) -> frozenset[Dropped] | None:
    """Those of these outputs that no call in a function uses; None if it cannot be traced."""
    found: dict[str, frozenset[int]] | None = None
    with guards.guarded("engine", "looking for outputs that nothing uses", report):
        found = unused.unused_outputs(function, args, kwargs, target)
    if found is None:
        return None
    idle: dict[Dropped, bool] = {}
    for captured in captures:
        numbers = found.get(captured.kernel.digest, frozenset())
        for n, operand in enumerate(captured.kernel.of_kind("output")):
            key = captured.kernel.name, operand.name
            idle[key] = idle.get(key, True) and n in numbers
    return frozenset(key for key in unwritten if idle.get(key))


def notes(seen: Iterable[Seen], findings: Iterable[Finding]) -> list[str]:
    """Notes about outputs that are not written, unless there is a finding about them."""
    names = {key for one in seen for key in one.dropped} - _unwritten(findings)
    return [outputs.note(kernel, operand) for kernel, operand in sorted(names, key=str)]


def _unwritten(findings: Iterable[Finding]) -> set[Dropped]:
    return {(f.kernel, f.operand) for f in findings if f.kind is Fault.OUTPUT_NOT_WRITTEN}
