"""Deduplication, counting and merging of findings.

The only module that decides whether two findings are the same fault.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pallas_debug.findings.faults import NO_KERNEL, Fault, Severity
from pallas_debug.model import Finding, SourceLine

Key = tuple[Fault, str, tuple[str, int] | None, str | None, bool]


def key(finding: Finding) -> Key:
    """Identity of a fault within an engine: kind, kernel, line, operand, and whether a race has two
    sides.

    A copy may race with another access, and also be sent before its device has entered the kernel.
    """
    has_other = finding.other is not None and finding.kind is Fault.DATA_RACE
    return finding.kind, finding.kernel, finding.witness.line, finding.operand, has_other


class Collector:
    """Findings in the order in which they were first seen, each fault once. Thread-safe."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._lock = threading.Lock()
        self._findings: dict[tuple[str, Key], Finding] = {}
        self.add(*findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        with self._lock:
            return tuple(self._findings.values())

    def add(self, *findings: Finding) -> list[Finding]:
        """Add the findings of one run of a kernel; return the new ones.

        The count of a known fault is increased by the run's count, the maximum within the run: a
        line of Python is often several operations (`a // b` is a division and a remainder).
        """
        run: dict[tuple[str, Key], Finding] = {}
        for finding in findings:
            place = finding.digest, key(finding)
            known = run.setdefault(place, finding)
            if finding.count > known.count:
                run[place] = replace(known, count=finding.count)
        new = []
        with self._lock:
            for place, finding in run.items():
                before = self._findings.get(place)
                if before is None:
                    new.append(finding)
                else:
                    count = before.count + finding.count
                    only_if = before.only_if and finding.only_if
                    finding = replace(before, count=count, only_if=only_if)
                self._findings[place] = finding
        return new

    def clear(self) -> None:
        with self._lock:
            self._findings.clear()


def merged(
    findings: Iterable[Finding], starts: Collection[SourceLine | None] = ()
) -> tuple[Finding, ...]:
    """Merge the findings of several engines, so that each fault is reported once; worst first.

    Message and witness come from the engine most certain of the fault. A failure of the compiler
    that a static finding explains is its consequence. Differences from a reference come last.

    Args:
      findings: findings of all engines.
      starts: first lines of the kernels. An engine reports such a line if it knows no better one,
        so another engine's line is preferred.
    """
    begins = {line.place for line in starts if line is not None}
    kept: list[Finding] = []
    for finding in sorted(findings, key=_by_sureness):
        same = [i for i, known in enumerate(kept) if _is_same(known, finding, begins)]
        same.sort(key=lambda i: kept[i].witness.line != finding.witness.line)
        if same:
            kept[same[0]] = _joined(kept[same[0]], finding, begins)
        else:
            kept.append(finding)
    return tuple(sorted(_with_failures(kept, begins), key=_by_severity))


Places = Collection[tuple[str, int]]

_ACCESSES = (Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE)


def _is_same(a: Finding, b: Finding, begins: Places) -> bool:
    """Return whether two findings, from two engines or for two targets, are the same fault."""
    here, there = (_line(one, begins) for one in (a, b))
    if (a.kind, a.kernel) != (b.kind, b.kernel) or (a.digest and b.digest and a.digest != b.digest):
        return False
    if {*a.engines[:1], *b.engines[:1]} == {"static", "compile"}:
        return True  # the compiler stops at the first fault, and often reports the line of the call
    if a.engines[:1] == b.engines[:1] and None not in (here, there):
        return key(a) == key(b)
    operands = {one.operand.partition("[")[0] for one in (a, b) if one.operand is not None}
    if None not in (a.operand, b.operand) and a.kind not in _ACCESSES:
        return len(operands) == 1  # engines differ in the line of an unwritten output
    return (None in (here, there) or here == there) and len(operands) < 2


def _line(finding: Finding, begins: Places) -> tuple[str, int] | None:
    """Line of a finding; None if its engine did not know a better one than the kernel's first."""
    line = finding.witness.line
    return None if line in begins else line


def _joined(first: Finding, other: Finding, begins: Places) -> Finding:
    """Complete the first finding with facts that only the other has."""
    a, b = first.witness, other.witness
    prefer_other = b.source is not None and _line(first, begins) is None
    source = b.source if prefer_other else a.source
    point = b.grid_point if a.grid_point is None else a.grid_point
    return replace(
        first,
        kernel=other.kernel if first.kernel == NO_KERNEL else first.kernel,
        digest=first.digest or other.digest,
        witness=replace(a, source=source, operand=a.operand or b.operand, grid_point=point),
        engines=tuple(dict.fromkeys((*first.engines, *other.engines))),
        targets=tuple(dict.fromkeys((*first.targets, *other.targets))),
        only_if=first.only_if and other.only_if,
        consequences=first.consequences or other.consequences,
    )


_UNCLASSIFIED = (
    *(Fault.TRACE_ERROR, Fault.LOWERING_ERROR, Fault.COMPILE_ERROR, Fault.COMPILER_ABORT),
)


def _with_failures(findings: Sequence[Finding], begins: Places) -> list[Finding]:
    """Attach unclassified failures of the compiler to the static finding of the same line."""
    kept = list(findings)
    for failure in (one for one in findings if one.kind in _UNCLASSIFIED):
        cause = next((i for i, one in enumerate(kept) if _follows(failure, one, begins)), None)
        if cause is not None:
            found = _joined(kept[cause], failure, begins)
            kept[cause] = replace(found, consequences=(*kept[cause].consequences, failure))
            kept.remove(failure)
    return kept


def _follows(failure: Finding, cause: Finding, begins: Places) -> bool:
    if cause.kernel not in (failure.kernel, NO_KERNEL) or "static" not in cause.engines:
        return False
    line = _line(failure, begins)
    if failure.kind is Fault.COMPILER_ABORT and line is None:
        return cause.kind.severity is Severity.UNSUPPORTED
    refused = cause.kind.severity in (Severity.UNSUPPORTED, Severity.REFUSED)
    return refused and line is not None and line == cause.witness.line


def _by_sureness(finding: Finding) -> int:
    """Rank of the most certain of its engines for this kind of fault."""
    engines: Sequence[str] = finding.kind.engines
    return min((engines.index(e) for e in finding.engines if e in engines), default=len(engines))


def _by_severity(finding: Finding) -> tuple[bool, bool, Severity]:
    """Sort key: findings that prevented compilation come first."""
    stopped = not {"trace", "compile"}.isdisjoint(finding.engines)
    return finding.kind is Fault.VALUE_MISMATCH, not stopped, finding.kind.severity
