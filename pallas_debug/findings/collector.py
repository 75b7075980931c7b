"""Deduplication, counting and merging of findings.

The only module that decides whether two findings are the same fault.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pallas_debug.findings.faults import NO_KERNEL, Fault, Severity
from pallas_debug.findings.rewording import reworded
from pallas_debug.findings.several import of_one_slip
from pallas_debug.findings.slips import (
    SLIPS,
    is_cast_of_nan,
    is_not_before,
    is_of_same_dimension,
    is_of_same_output,
)
from pallas_debug.findings.wording import mismatch, order
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

    Message, witness, cause and advice come from the engine most certain of the fault.

    Args:
      findings: findings of all engines.
      starts: first lines of the kernels. An engine reports such a line if it knows no better one,
        so another engine's line is preferred.
    """
    begins = {line.place for line in starts if line is not None}
    ordered = sorted(findings, key=_by_sureness)
    kept: list[Finding] = []
    for finding in ordered:
        same = [
            i
            for i, known in enumerate(kept)
            if _is_same(known, finding) and not _is_another_access(finding, known, ordered)
        ]
        same.sort(key=lambda i: kept[i].witness.line != finding.witness.line)
        if same:
            kept[same[0]] = _joined(kept[same[0]], finding, begins)
        else:
            kept.append(finding)
    kept = of_one_slip(_with_consequences(_without_repeats(kept, begins), begins))
    return _causes_first(sorted(caused(kept), key=_by_severity))


def _is_same(a: Finding, b: Finding) -> bool:
    """Return whether two findings, from two engines or for two targets, are the same fault."""
    if a.kind is b.kind is Fault.REMOVED_NAME and NO_KERNEL in (a.kernel, b.kernel):
        return a.witness.line == b.witness.line  # reading the source does not show the kernel
    if (a.kind, a.kernel) != (b.kind, b.kernel) or (a.digest and b.digest and a.digest != b.digest):
        return False
    engines = (*a.engines[:1], *b.engines[:1])
    if set(engines) == {"static", "compile"}:
        return True  # the compiler stops at the first fault, and often reports the line of the call
    if a.kind is Fault.DEADLOCK and len(set(engines)) == 2:
        return True  # a run ends at its first deadlock; engines differ in which wait they report
    if a.kind is Fault.DATA_RACE and len(set(engines)) == 2 and _sides(a) == _sides(b):
        return True
    here, there = a.witness.line, b.witness.line
    if a.kind is Fault.DMA_NOT_AWAITED and (here == there or _is_on_same_semaphore(a, b)):
        return True  # one engine reports the semaphore, the other the destination
    if len(set(engines)) == 1 and None not in (here, there):
        return key(a) == key(b)
    if a.operand is not None and b.operand is not None:
        return _base(a.operand) == _base(b.operand)
    return None in (here, there) or here == there


def _is_another_access(finding: Finding, known: Finding, findings: Iterable[Finding]) -> bool:
    """Return whether an engine reports an access out of bounds besides one that is already known.

    A run ends at the first one, and other engines report every line.
    """
    if finding.kind not in _ACCESSES or finding.witness.line == known.witness.line:
        return False
    return any(
        other is not finding
        and key(other) == key(replace(finding, witness=known.witness))
        and set(other.engines) & set(finding.engines)
        for other in findings
    )


def _sides(race: Finding) -> frozenset[tuple[str, int] | None]:
    """Lines of both sides of a race: engines differ in which side they report first."""
    other = None if race.other is None else race.other.place
    return frozenset({race.witness.line, other} - {None})


def _is_on_same_semaphore(a: Finding, b: Finding) -> bool:
    """Return whether two engines found the same semaphore raised, each naming one of the starts."""
    ours, theirs = (one.witness.values.get("semaphore") for one in (a, b))
    return ours is not None and ours == theirs and a.engines[:1] != b.engines[:1]


def _base(operand: str) -> str:
    """Strip the index that some engines add: `sem` for `sem[0]`."""
    return operand.partition("[")[0]


def _joined(first: Finding, other: Finding, begins: Collection[tuple[str, int]]) -> Finding:
    """Complete the first finding with facts that only the other has."""
    a, b = first.witness, other.witness
    prefer_other = b.source is not None and (a.source is None or a.line in begins)
    witness = replace(
        a,
        source=b.source if prefer_other else a.source,
        operand=a.operand or b.operand,
        grid_point=a.grid_point if a.grid_point is not None else b.grid_point,
        values={**b.values, **a.values} if a.line == b.line or b.line in begins else a.values,
    )
    return replace(
        first,
        kernel=other.kernel if first.kernel == NO_KERNEL else first.kernel,
        digest=first.digest or other.digest,
        witness=witness,
        engines=tuple(dict.fromkeys((*first.engines, *other.engines))),
        targets=tuple(dict.fromkeys((*first.targets, *other.targets))),
        cause=first.cause or other.cause,
        advice=first.advice or other.advice,
        only_if=first.only_if and other.only_if,
        consequences=first.consequences or other.consequences,
    )


def _without_repeats(
    findings: Sequence[Finding], begins: Collection[tuple[str, int]]
) -> list[Finding]:
    """Drop findings that another engine reported as the consequence of a fault."""

    def completed(finding: Finding) -> Finding:
        consequences = []
        for consequence in finding.consequences:
            for other in findings:
                if other is not finding and _is_same(consequence, other):
                    consequence = _joined(consequence, other, begins)
                    left_out.add(id(other))
            consequences.append(consequence)
        return replace(finding, consequences=tuple(consequences))

    left_out: set[int] = set()
    kept = [(finding, completed(finding)) for finding in findings]
    return [new for old, new in kept if id(old) not in left_out]


def _with_consequences(
    findings: Sequence[Finding], begins: Collection[tuple[str, int]]
) -> list[Finding]:
    """Attach unclassified failures to the static finding that explains them.

    For example, attach a compiler crash to the construct that the compiler should have rejected.
    """
    left = [finding for finding in findings if finding.kind in _UNCLASSIFIED]
    kept = []
    for finding in findings:
        if finding.kind in _UNCLASSIFIED:
            continue
        following = [failure for failure in left if _follows(failure, finding, begins)]
        left = [failure for failure in left if failure not in following]
        for failure in following:
            finding = replace(
                finding,
                engines=tuple(dict.fromkeys((*finding.engines, *failure.engines))),
                targets=tuple(dict.fromkeys((*finding.targets, *failure.targets))),
                consequences=(*finding.consequences, failure),
            )
        kept.append(finding)
    return [*kept, *left]


_ACCESSES = (Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE)

_VALUES = (Fault.NAN_PRODUCED, Fault.INFINITY_PRODUCED)

_OF_MEMORY = (
    *(Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE, Fault.BLOCK_OUT_OF_BOUNDS),
    *(Fault.UNINITIALIZED_READ, Fault.OUTPUT_NOT_WRITTEN, Fault.PADDING_READ),
    *(Fault.OUTPUT_REVISITED, Fault.DATA_RACE, Fault.DMA_NOT_AWAITED),
    Fault.OVERWRITTEN_READ,
)
"""Faults that make a kernel compute with unintended values."""

_LEADS_TO_DEADLOCK = (
    *(Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE, Fault.BLOCK_OUT_OF_BOUNDS),
    *(Fault.UNINITIALIZED_READ, Fault.DATA_RACE, Fault.WAIT_SIZE_MISMATCH),
)
"""Faults that may make a wait endless."""


def caused(findings: Iterable[Finding]) -> list[Finding]:
    """Attach each finding that follows from another fault to the first such cause.

    A NaN or infinity may follow from a memory fault at the same or an earlier grid point, and two
    interpreters differ if a kernel uses unwritten memory or depends on an undefined order. A NaN
    produced from an infinity follows from the operation that produced the infinity, and a read of
    unwritten memory that was copied follows from the copy.
    """
    found = list(findings)
    cause_of: dict[int, Finding] = {}
    for finding in found:
        causes = [f for f in found if f.kind in _OF_MEMORY and _comes_of(finding, f)]
        causes = causes or [f for f in found if _is_made_by(finding, f)]
        causes.sort(key=lambda f: f.grid_point != finding.grid_point)
        # A copy within one buffer would be its own cause; two buffers may be copied to each other.
        possible = (f for f in causes if _first_cause(f, cause_of) is not finding)
        if (cause := next(possible, None)) is not None:
            cause_of[id(finding)] = cause
    following: dict[int, list[Finding]] = {}
    for finding in found:
        first = _first_cause(finding, cause_of)
        if first is not finding:
            last = replace(finding, consequences=())
            following.setdefault(id(first), []).extend((last, *finding.consequences))
    return [
        _followed(f, following[id(f)]) if id(f) in following else f
        for f in found
        if id(f) not in cause_of
    ]


def _followed(finding: Finding, by: Sequence[Finding]) -> Finding:
    """Add consequences to a finding."""
    finding = reworded(finding, by)
    return replace(finding, consequences=(*finding.consequences, *by))


def _first_cause(finding: Finding, cause_of: Mapping[int, Finding]) -> Finding:
    while id(finding) in cause_of:
        finding = cause_of[id(finding)]
    return finding


def _is_made_by(finding: Finding, cause: Finding) -> bool:
    """Return whether a finding follows from one of the kinds that it names, such as an infinity."""
    if cause.kernel != finding.kernel:
        return False
    if is_of_same_dimension(finding, cause):
        return True
    rule = SLIPS.get((finding.kind, cause.kind))
    if rule is not None and rule(finding, cause):
        return True
    if any(_is_made_by(finding, one) for one in cause.consequences if one != finding):
        return True  # a run has attached it to its own cause
    if cause.kind not in finding.comes_of:
        return False
    if cause.kind is Fault.UNINITIALIZED_READ:  # data delivered by a copy is missing as well
        is_source = cause.operand == finding.witness.values.get("copied from")
        return is_source and is_not_before(finding, cause)
    if cause.kind is Fault.DIVISION_BY_ZERO:
        return cause.witness.line == finding.witness.line
    return cause.kind is not finding.kind and is_not_before(finding, cause)


_OF_RESULTS = (
    *(*_OF_MEMORY, *_VALUES, Fault.DIVISION_BY_ZERO, Fault.INTEGER_OVERFLOW),
    *(Fault.NARROWING_LOSS, Fault.WAIT_SIZE_MISMATCH),
    *(Fault.FALSE_HINT, Fault.UNSEEDED_RANDOM_BITS),
)
"""Faults that may change a kernel's results relative to its reference."""


def _causes_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Move deadlocks and endless loops behind memory and order faults found by the machine, and
    mismatches with a reference behind all faults that may have changed the results.
    """
    led = {f.kernel for f in findings if f.kind in _LEADS_TO_DEADLOCK and "machine" in f.engines}
    late = [f for f in findings if _may_be_led(f) and f.kernel in led]
    wrong = [_after_cause(f, findings) for f in findings if f.kind is Fault.VALUE_MISMATCH]
    rest = [f for f in findings if f not in late and f.kind is not Fault.VALUE_MISMATCH]
    return (*rest, *late, *wrong)


def _may_be_led(finding: Finding) -> bool:
    if finding.kind is Fault.ENDLESS_LOOP:
        return "machine" not in finding.engines
    return finding.kind is Fault.DEADLOCK and "machine" in finding.engines


def _after_cause(wrong: Finding, findings: Iterable[Finding]) -> Finding:
    """Mention the kernel's worst other fault in the advice on its results."""
    for cause in findings:
        if cause.kind in _OF_RESULTS and cause.kernel == wrong.kernel:
            return mismatch.after_cause(wrong, cause)
    return wrong


def _comes_of(finding: Finding, cause: Finding) -> bool:
    if finding.kind is Fault.OUTPUT_NOT_WRITTEN:
        is_early = cause.values.get(order.PIPELINE) == order.WRITES_BACK  # before a copy to it ends
        return cause.kind is Fault.DATA_RACE and is_early and is_of_same_output(finding, cause)
    is_of_number = finding.kind in _VALUES or is_cast_of_nan(finding)
    if not is_of_number or finding.kernel != cause.kernel:
        return False
    if cause.kind is Fault.OUTPUT_NOT_WRITTEN:
        return False  # nothing in the kernel reads what remains in it
    return is_not_before(finding, cause)


_UNCLASSIFIED = (
    Fault.TRACE_ERROR,
    Fault.LOWERING_ERROR,
    Fault.COMPILE_ERROR,
    Fault.COMPILER_ABORT,
)


def _follows(failure: Finding, cause: Finding, begins: Collection[tuple[str, int]]) -> bool:
    if cause.kernel not in (failure.kernel, NO_KERNEL) or "static" not in cause.engines:
        return False
    line = failure.witness.line
    if failure.kind is Fault.COMPILER_ABORT and (line is None or line in begins):
        return cause.kind.severity is Severity.UNSUPPORTED
    refused = cause.kind.severity in (Severity.UNSUPPORTED, Severity.REFUSED)
    return refused and line is not None and line == cause.witness.line


def _by_sureness(finding: Finding) -> int:
    """Rank of the most certain of its engines for this kind of fault."""
    judges = [str(name) for name in finding.kind.judges]
    return min((judges.index(e) for e in finding.engines if e in judges), default=len(judges))


def _by_severity(finding: Finding) -> tuple[bool, Severity]:
    """Sort key: findings that prevented compilation come first."""
    stopped = not {"trace", "compile"}.isdisjoint(finding.engines)
    return not stopped, finding.kind.severity
