"""A verdict as SARIF 2.1.0, the format of code-scanning services.

Schema: OASIS Static Analysis Results Interchange Format, version 2.1.0.
"""

from __future__ import annotations

from typing import Any

from pallas_debug._version import __version__
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, Gap, SourceLine
from pallas_debug.render import below, finding_text
from pallas_debug.verdict.result import Verdict

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(verdict: Verdict) -> dict[str, Any]:
    """Convert the verdict to a document with one run; suppressed findings are marked as such."""
    found: list[tuple[Finding, str | None]] = [
        (verdict.labelled(finding), None) for finding in verdict.findings
    ]
    found += [(verdict.labelled(s.finding), s.reason) for s in verdict.suppressed]
    rules = sorted({finding.kind for finding, _ in found})
    driver = {
        "name": "pallas-debug",
        "version": __version__,
        "rules": [_rule(kind) for kind in rules],
    }
    notifications = [_gap(gap) for gap in verdict.gaps]
    notifications += [_notification("error", f"not done: {p}") for p in verdict.problems]
    invocation = {
        "executionSuccessful": verdict.complete,
        "toolExecutionNotifications": notifications,
    }
    run = {
        "tool": {"driver": driver},
        "results": [_result(finding, reason, rules) for finding, reason in found],
        "invocations": [invocation],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}}


def _gap(gap: Gap) -> dict[str, Any]:
    level, status = ("note", "unsupported") if gap.is_limit else ("error", "unjudged")
    if gap.is_partial:
        status = "judged in part"
    return _notification(level, f"{gap.kernel}, {gap.engine}: {status}: {gap.reason}")


def _rule(kind: Fault) -> dict[str, Any]:
    return {"id": str(kind), "name": str(kind), "shortDescription": {"text": kind.summary}}


def _result(finding: Finding, suppressed: str | None, rules: list[Fault]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": str(finding.kind),
        "ruleIndex": rules.index(finding.kind),
        "level": "error" if finding.counts else "warning",
        "message": {"text": finding_text(finding, verbose=True)},
        "properties": {
            "kernel": finding.kernel,
            "engines": list(finding.engines),
            "targets": list(finding.targets),
            "madeUp": list(finding.made_up),
            **({"onlyIf": finding.only_if} if finding.only_if else {}),
        },
    }
    if finding.source is not None:
        result["locations"] = [_location(finding.source)]
    if finding.other is not None:
        result["relatedLocations"] = [_location(finding.other)]
    if suppressed is not None:
        result["suppressions"] = [{"kind": "external", "justification": suppressed}]
    return result


def _location(source: SourceLine) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": source.line}
    if source.text:
        region["snippet"] = {"text": source.text}
    return {"physicalLocation": {"artifactLocation": {"uri": below(source.file)}, "region": region}}
