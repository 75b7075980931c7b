"""Results that rest on made-up values of arguments: findings that are only seen in a run and depend
on these values, and judgements of loops that did not run because of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug import guards
from pallas_debug.bridge.walk import dependence
from pallas_debug.bridge.walk.dependence import Dependence
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings.faults import Fault, Severity
from pallas_debug.model import Finding, Target
from pallas_debug.verdict.engines import Call

_BY_ACCESS = (Severity.STOPS, Severity.BOUNDS, Severity.ORDER, Severity.UNDEFINED)
"""Faults that depend on what is accessed and when, not on the values that are read."""


def marked(
    findings: Sequence[Finding], call: Call, target: Target
) -> tuple[tuple[Finding, ...], list[str]]:
    """Set `made_up` of findings that rest on made-up values, and move them to the end.

    If it cannot be determined what decides the findings, which is a problem, every finding of a run
    is assumed to rest on these values.

    Args:
      target: the one whose kernels ran.

    Returns:
      The findings, and problems.
    """
    named = call.values.named
    if not named or not any(_may_rest(finding) for finding in findings):
        return tuple(findings), []
    known: dict[str, Dependence] = {}
    failed: list[PallasDebugError] = []
    with guards.guarded("engine", "looking for what decides the findings", failed.append):
        known = dependence.dependences(call.function, call.args, call.kwargs, named, target)

    def names(finding: Finding) -> tuple[str, ...]:
        if not _may_rest(finding):
            return ()
        of_kernel = [finding.digest] if finding.digest else list(known)
        if not of_kernel or any(digest not in known for digest in of_kernel):
            return tuple(named.values())
        found = {name for digest in of_kernel for name in _names(finding, known[digest])}
        return tuple(name for name in named.values() if name in found)

    rested = [replace(finding, made_up=names(finding)) for finding in findings]
    return tuple(sorted(rested, key=lambda finding: not finding.counts)), list(map(str, failed))


def _may_rest(finding: Finding) -> bool:
    if finding.kind is Fault.LOW_PRECISION_PRODUCT:  # by how much depends on the values
        return True
    judged = (*_BY_ACCESS, Severity.VALUES)
    return finding.engines == ("machine",) and finding.kind.severity in judged


def _names(finding: Finding, found: Dependence) -> frozenset[str]:
    other = [] if finding.other is None else [finding.other.place]
    if finding.kind.severity is Severity.VALUES:
        return found.of_values(finding.witness.line, *other)
    return found.of_accesses(finding.witness.line, *other)
