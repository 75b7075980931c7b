"""Findings that depend on the program around the kernels.

Outputs that nothing uses need not be written, and if two inputs are the same array, one may read
the parts that the other leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_debug import guards
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk.dataflow import shared, unused
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings import outputs
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.outputs import Box, Dropped
from pallas_debug.findings.wording.bounds import REST_READ_AS
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
    """Leave out unwritten outputs that the function does not use.

    Args:
      problems: receives a sentence if that could not be determined; then each program within the
        function decides.
    """
    unwritten = _unwritten(finding for one in seen for finding in one.findings)
    if not unwritten:
        return list(seen)
    failed: list[PallasDebugError] = []
    found = unneeded(
        call.function, call.args, call.kwargs, captures, target, unwritten, failed.append
    )
    problems += map(str, failed)
    return list(seen) if found is None else [found.left_out(one) for one in seen]


def with_separate_inputs(
    seen: Sequence[Seen],
    call: Call,
    captures: Sequence[Capture],
    target: Target,
    problems: list[str],
) -> list[Seen]:
    """Count inputs that are partly unread, if no other operand is the same array.

    Args:
      problems: receives a sentence if that could not be determined.
    """
    if not any(_may_be_shared(finding) for one in seen for finding in one.findings):
        return list(seen)
    calls: dict[str, list[list[shared.Arrays]]] = {}
    failed: list[PallasDebugError] = []
    with guards.guarded("engine", "looking for operands that are one array", failed.append):
        calls = shared.operand_arrays(call.function, call.args, call.kwargs, target)
    problems += map(str, failed)

    def are_separate(captured: Capture, names: Sequence[str | None]) -> bool:
        """Return whether two operands are different arrays in each call of a kernel."""
        operands = [o.name for o in captured.kernel.operands if o.kind in _PASSED]
        if not set(names).issubset(operands):
            return False
        numbers = [operands.index(str(name)) for name in names]
        found = [
            [one[number] for number in numbers]
            for one in calls.get(captured.kernel.digest, ())
            if len(one) == len(operands)
        ]
        return bool(found) and all(a and b and not a & b for a, b in found)

    def judged(finding: Finding) -> Finding:
        if not _may_be_shared(finding):
            return finding
        names = finding.operand, finding.witness.values[REST_READ_AS]
        of_kernel = [c for c in captures if c.kernel.name == finding.kernel]
        is_certain = bool(of_kernel) and all(are_separate(c, names) for c in of_kernel)
        return replace(finding, only_if=None) if is_certain else finding

    return [replace(one, findings=tuple(map(judged, one.findings))) for one in seen]


_PASSED = ("dynamic_grid", "scalar_prefetch", "input")
"""Kinds of the operands that a call passes, in order."""


def _may_be_shared(finding: Finding) -> bool:
    return finding.only_if is not None and REST_READ_AS in finding.witness.values


def resolved(
    findings: Sequence[Finding],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    session: Session,
) -> tuple[Finding, ...]:
    """Resolve conditions of findings by the function that calls the kernels, if it is traceable.

    The function's results count as used.
    """
    unwritten = _unwritten(finding for finding in findings if finding.only_if)
    target = session.chip
    if not unwritten or target is None:
        return tuple(findings)
    found = unneeded(
        function, args, kwargs, session.captures, target, unwritten, lambda problem: None
    )
    seen = Seen(findings=tuple(findings))
    return seen.findings if found is None else found.left_out(seen).findings


@dataclass(frozen=True, kw_only=True)
class Unneeded:
    """What a function does not use of its kernels' unwritten outputs.

    Attributes:
      outputs: those of which it uses nothing.
      read: for those that it only slices, the box that contains all that it reads.
    """

    outputs: frozenset[Dropped]
    read: Mapping[Dropped, Box]

    def left_out(self, seen: Seen) -> Seen:
        """Leave out findings about what is not used."""
        left = seen.without_unwritten(self.outputs)
        kept = tuple(
            f
            for f in left.findings
            if not outputs.is_unread(f, self.read.get((f.kernel, f.operand)))
        )
        dropped = _unwritten(seen.findings) - _unwritten(kept)
        return replace(left.with_findings(kept), dropped=left.dropped | dropped)


def unneeded(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    captures: Sequence[Capture],
    target: Target,
    unwritten: Iterable[Dropped],
    report: Callable[[PallasDebugError], None],
) -> Unneeded | None:
    """Return what no call in a function uses of these outputs; None if it cannot be traced."""
    found: dict[str, unused.Unused] | None = None
    with guards.guarded("engine", "looking for outputs that nothing uses", report):
        found = unused.unused_outputs(function, args, kwargs, target)
    if found is None:
        return None
    idle: dict[Dropped, bool] = {}
    boxes: dict[Dropped, list[Box | None]] = {}
    for captured in captures:
        uses = found.get(captured.kernel.digest)
        for n, operand in enumerate(captured.kernel.of_kind("output")):
            key = captured.kernel.name, operand.name
            idle[key] = idle.get(key, True) and uses is not None and n in uses.outputs
            boxes.setdefault(key, []).append(None if uses is None else uses.read[n])
    return Unneeded(
        outputs=frozenset(key for key in unwritten if idle.get(key)),
        read={key: box for key, every in boxes.items() if (box := outputs.hull_of(every))},
    )


def notes(seen: Iterable[Seen], findings: Iterable[Finding]) -> list[str]:
    """Notes about unwritten outputs for which there is no finding."""
    names = {key for one in seen for key in one.dropped} - _unwritten(findings)
    return [outputs.note(kernel, operand) for kernel, operand in sorted(names, key=str)]


def _unwritten(findings: Iterable[Finding]) -> set[Dropped]:
    return {(f.kernel, f.operand) for f in findings if f.kind is Fault.OUTPUT_NOT_WRITTEN}
