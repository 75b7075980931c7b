"""Elements that a kernel does not write count only if they change a result of the function.

The function runs once more, with other contents in the memory that its kernels leave unwritten: a
later kernel may complete an array through an alias, and a caller may use only a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.findings import outputs
from pallas_debug.findings.faults import Fault
from pallas_debug.inputs.made_up import Filled
from pallas_debug.model import Finding
from pallas_debug.session import Session
from pallas_debug.verdict import interpreted
from pallas_debug.verdict.engines import Call, Seen


def used(findings: Sequence[Finding], session: Session) -> list[Finding]:
    """Leave out unwritten outputs that the session's programs do not use."""
    uses = {kernel.digest: session.callers.uses(kernel) for kernel in session.kernels}
    kept = [finding for finding in findings if finding.digest not in uses]
    for digest, used in uses.items():
        kept += outputs.without_unused((f for f in findings if f.digest == digest), used)
    return kept


def decided(findings: Sequence[Finding], call: Call, ran: Seen) -> list[Finding]:
    """Leave out unwritten outputs that change no result of a function; the others count.

    Args:
      ran: the run on the kernel machine.
    """
    suspects = {f.digest for f in findings if _is_unwritten(f)}
    suspects &= {captured.kernel.digest for captured in ran.captures}
    if not ran.returned or ran.options is None or not arrays.has_leaves(ran.result):
        return list(findings)
    matter = {digest for digest in suspects if _changes_result(call, ran, digest)}
    left = [f for f in findings if _is_unwritten(f) and f.digest in suspects - matter]
    return [outputs.certain(f) if f.digest in matter else f for f in findings if f not in left]


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
    if session.interpret_mode.kind not in ("auto", "machine"):
        return tuple(findings)
    ran = Seen(
        captures=tuple(session.captures), result=result, returned=True, options=session.options
    )
    values = Filled(args=tuple(args), kwargs=kwargs)
    call = Call(function=function, args=args, kwargs=kwargs, values=values)
    return tuple(decided(findings, call, ran))


def _changes_result(call: Call, ran: Seen, digest: str) -> bool:
    """Return whether a function's result depends on the memory that a kernel leaves unwritten."""
    assert ran.options is not None
    options = replace(
        ran.options, interpret="machine", checks=(), refilled=frozenset([digest]), pace=None
    )
    _, error, other = interpreted.run(call, options)
    return error is not None or not arrays.are_identical(ran.result, other)


def _is_unwritten(finding: Finding) -> bool:
    return finding.kind is Fault.OUTPUT_NOT_WRITTEN
