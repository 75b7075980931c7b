"""One finding of what several engines saw, and the worst first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pallas_debug.model import Finding, SourceLine

SAME: tuple[frozenset[str], ...] = (
    frozenset({"BlockOutOfBounds", "BlockIndexOutOfBounds", "ElementOffsetAsBlockIndex"}),
    frozenset({"UninitializedRead", "UninitializedScratch"}),
    frozenset({"OutputNotWritten", "UninitializedOutput"}),
    frozenset({"PaddingRead", "RaggedPadding"}),
    frozenset({"FalseHint", "FalseMultipleOf"}),
    frozenset({"CheckFailed", "DebugCheckFailed"}),
    frozenset({"OutputRevisited", "NonConsecutiveRevisit"}),
    frozenset({"ParallelRevisit", "DataRace"}),
    frozenset({"VmemOverflow", "VmemCapacity"}),
    frozenset({"SemaphoreNotZero", "SemaphoreLeftOver"}),
    frozenset({"Deadlock", "SemaphoreNeverSignalled", "DmaWaitedTwice"}),
)
"""What different engines call one and the same fault."""

WORST: tuple[frozenset[str], ...] = (
    frozenset({"CompilerAbort", "Deadlock"}),
    frozenset({"OutOfBoundsWrite", "OutOfBoundsRead", "BlockOutOfBounds"}),
    frozenset({"DataRace", "DmaNotAwaited", "SemaphoreLeftOver", "OutputRevisited"}),
    frozenset({"UninitializedRead", "OutputNotWritten", "PaddingRead"}),
    frozenset({"NanProduced", "InfinityProduced", "DivisionByZero", "CheckFailed", "FalseHint"}),
)
"""Kinds of findings by how bad they are; what keeps a kernel from running at all comes before, and
whatever is not named here after them."""

REFUSED = frozenset(
    {
        *("UnsupportedPrimitive", "UnsupportedGather", "UnsupportedShapeCast", "UnsupportedDtype"),
        *("UnsupportedCast", "UnsupportedCheck", "InvalidOperation", "UnalignedDma"),
        *("UnprovenAlignment", "DirectHbmAccess", "ScalarStoreToVmem", "BlockShapeTiling"),
        *("X64IndexMap", "ZeroSizeOperand"),
    }
)
"""What a compiler is to refuse: where it dies, that is what it died of."""

_PADDING = frozenset({"PaddingRead", "RaggedPadding"})

_WITNESS = ("checks", "tpu interpret", "static")
"""Whose words are kept where several saw the same: first who saw it happen."""


def family(kind: str) -> frozenset[str]:
    """The names that the fault of this name has elsewhere."""
    return next((names for names in SAME if kind in names), frozenset({kind}))


def merged(
    findings: Iterable[Finding], starts: Collection[SourceLine | None] = ()
) -> tuple[Finding, ...]:
    """Each fault once, with the words of who saw it happen, and all who did.

    Two are the same fault if they are of one kernel and family, and stand at one line, or concern
    one operand, or one of them has neither. What the compiler refuses is the same as what the
    static analysis sees of that family, or at that line; what it dies of is what it was to refuse.

    Args:
      starts: lines at which the kernels begin. Who names such a line knows of none: that of
        another engine is taken.
    """
    begins = {(line.file, line.line) for line in starts if line is not None}
    kept: list[Finding] = []
    for finding in sorted(findings, key=_by_witness):
        at = next((i for i, known in enumerate(kept) if _is_same(known, finding)), None)
        if at is None:
            kept.append(finding)
        else:
            kept[at] = _joined(kept[at], finding, begins)
    return tuple(sorted(kept, key=_by_weight))


def _is_same(a: Finding, b: Finding) -> bool:
    if a.kernel != b.kernel:
        return False
    alike = family(a.kind) == family(b.kind)
    if {_engine(a), _engine(b)} == {"static", "trace"}:
        return a.source is not None and _line(a) == _line(b)  # what jax stumbled over, as it traced
    if {_engine(a), _engine(b)} == {"static", "compile"}:
        # The compiler stops at one fault, and often names the whole call, or another class.
        return alike or (a.source is not None and _line(a) == _line(b)) or _died_of(a, b)
    if {a.kind, b.kind} == {"UninitializedRead", "UninitializedOutput"}:
        # An output that is added to: one says that it was read, the other that it was not set.
        alike = a.operand == b.operand is not None and _line(a) == _line(b) is not None
    if not alike:
        return False
    if {_engine(a), _engine(b)} == {"static", "checks"} and {a.kind, b.kind} >= _PADDING:
        # A check sees that padding reached an output, and names the first that was read on the way,
        # masked or not; the static analysis knows which was not.
        return a.grid_point == b.grid_point
    if a.engine == b.engine and a.source is not None and b.source is not None:
        return _line(a) == _line(b) and a.operand == b.operand
    if a.source is None or b.source is None or _line(a) == _line(b):
        return True
    return a.operand is not None and a.operand == b.operand


def _died_of(a: Finding, b: Finding) -> bool:
    """Whether one is a compiler that died and named no line, the other what it was to refuse."""
    death, reason = (a, b) if a.kind == "CompilerAbort" else (b, a)
    return death.kind == "CompilerAbort" and death.source is None and reason.kind in REFUSED


def _engine(finding: Finding) -> str:
    """Whose words a finding has."""
    return (finding.engine or "").partition(",")[0]


def _line(finding: Finding) -> tuple[str, int] | None:
    line = finding.source
    return None if line is None else (line.file, line.line)


def _joined(first: Finding, other: Finding, begins: Collection[tuple[str, int]]) -> Finding:
    """What the first says, filled up with what only the other knows."""
    source = first.source or other.source
    if _line(first) in begins and other.source is not None:
        source = other.source
    targets = [f.values["targets"] for f in (first, other) if "targets" in f.values]
    engines = [*(first.engine or "").split(", "), *(other.engine or "").split(", ")]
    return replace(
        first,
        engine=", ".join(dict.fromkeys(filter(None, engines))),
        message=_with_death(first, other),
        source=source,
        operand=first.operand or other.operand,
        grid_point=first.grid_point if first.grid_point is not None else other.grid_point,
        cause=first.cause or other.cause,
        advice=first.advice or other.advice,
        values={**first.values, **({"targets": ", ".join(targets)} if targets else {})},
    )


def _with_death(first: Finding, other: Finding) -> str:
    """What the first says, and that the compiler dies of it: once, whatever the target."""
    last_words = other.message.partition("\n")[0]
    how = last_words.partition(" while ")[0]
    if other.kind != "CompilerAbort" or first.kind == "CompilerAbort" or how in first.message:
        return first.message
    return f"{first.message}\n{last_words}"


def _by_witness(finding: Finding) -> int:
    if finding.kind == "ParallelRevisit":
        return -1  # it names the two grid points and why they race, and the race only where
    if finding.kind == "RaggedPadding":
        return -1  # it names what the padding gets into, and a check where it was read
    engine = _engine(finding)
    return _WITNESS.index(engine) if engine in _WITNESS else len(_WITNESS)


def _by_weight(finding: Finding) -> tuple[int, int]:
    stops = not {"trace", "compile"}.isdisjoint((finding.engine or "").split(", "))
    names = family(finding.kind)
    weight = next((i for i, kinds in enumerate(WORST) if kinds & names), len(WORST))
    return (0 if stops else 1, weight)
