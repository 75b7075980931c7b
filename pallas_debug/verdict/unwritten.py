"""Elements that a kernel does not write count only if they change a result of the function.

The function runs once more, with other contents in the memory that its kernels leave unwritten: a
later kernel may complete an array through an alias, and a caller may use only a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.lowering import trace
from pallas_debug.findings import outputs
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.outputs import Dropped
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session
from pallas_debug.verdict.engines import Call, Seen


def decided(seen: Sequence[Seen], call: Call, ran: Seen) -> list[Seen]:
    """Leave out unwritten outputs that change no result of a function; the others count.

    Args:
      seen: answers of all engines.
      ran: the run on the kernel machine.
    """
    suspects = {f.digest for one in seen for f in one.findings if _is_unwritten(f)}
    digests = suspects & {c.kernel.digest for c in ran.captures}
    if not ran.returned or ran.options is None or not arrays.has_leaves(ran.result):
        return list(seen)
    matter = {
        digest
        for digest in digests
        if _changes_result(call.function, *call.values, ran.result, ran.options, digest)
    }
    return [one.without_unwritten(digests - matter, matter) for one in seen]


def resolved(
    findings: Sequence[Finding],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    session: Session,
    result: Any,
) -> tuple[Finding, ...]:
    """Decide like `decided` for the findings of a function that ran in a session.

    Args:
      result: what the function returned.
    """
    seen = Seen(
        findings=tuple(findings),
        captures=tuple(session.captures),
        result=result,
        returned=True,
        options=session.options,
    )
    if session.interpret_mode.kind not in ("auto", "machine"):
        return seen.findings
    call = Call(function=function, args=args, kwargs=kwargs, values=(args, kwargs))
    (seen,) = decided([seen], call, seen)
    return seen.findings


def _changes_result(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    options: Options,
    digest: str,
) -> bool:
    """Return whether a function's result depends on the memory that a kernel leaves unwritten."""
    args, kwargs = trace.copied(args, kwargs)
    again = Options(
        interpret="machine",
        chip=options.chip,
        hang_after=options.hang_after,
        refilled=frozenset([digest]),
        epoch=object(),
    )
    try:
        with Session(again, runs=True) as session:
            other = trace.block_until_ready(function(*args, **kwargs))
            session.wait_for_runs()
    except Exception:  # noqa: BLE001 - the first run returned, so these contents made it raise
        return True
    return not arrays.are_identical(result, other)


def notes(seen: Iterable[Seen], findings: Iterable[Finding]) -> list[str]:
    """Notes about unwritten outputs for which there is no finding."""
    known = {(f.kernel, f.operand) for f in findings if _is_unwritten(f)}
    names: Collection[Dropped] = {key for one in seen for key in one.dropped} - known
    return [outputs.note(kernel, operand) for kernel, operand in sorted(names, key=str)]


def _is_unwritten(finding: Finding) -> bool:
    return finding.kind is Fault.OUTPUT_NOT_WRITTEN
