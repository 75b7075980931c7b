"""A verdict as SARIF 2.1.0, the format of code-scanning services.

Schema: OASIS Static Analysis Results Interchange Format, version 2.1.0.
"""

from __future__ import annotations

from typing import Any

from pallas_debug._version import __version__
from pallas_debug.model import Finding, SourceLine
from pallas_debug.report import finding_text
from pallas_debug.verdict.paths import below
from pallas_debug.verdict.result import Verdict
from pallas_debug.verdict.table import labels

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a document of one run; suppressed findings are in it, marked as such."""
    rules = sorted(
        {f.kind for f in verdict.findings} | {s.finding.kind for s in verdict.suppressed}
    )
    results = [_result(finding, rules) for finding in verdict.findings]
    results += [
        {
            **_result(s.finding, rules),
            "suppressions": [{"kind": "external", "justification": s.reason}],
        }
        for s in verdict.suppressed
    ]
    names = labels((o.kernel, o.digest) for o in verdict.outcomes if o.kernel)
    notifications = [
        _notification(
            "error" if o.status == "unjudged" else "note",
            f"{names.get((o.kernel, o.digest), o.kernel)}, {o.column}: {o.status}: {o.reason}",
        )
        for o in verdict.gaps
    ]
    notifications += [_notification("error", f"not done: {p}") for p in verdict.problems]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "pallas-debug",
                        "version": __version__,
                        "rules": [{"id": kind, "name": kind} for kind in rules],
                    }
                },
                "results": results,
                "invocations": [
                    {
                        "executionSuccessful": verdict.complete,
                        "toolExecutionNotifications": notifications,
                    }
                ],
            }
        ],
    }


def _notification(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": text}}


def _result(finding: Finding, rules: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.kind,
        "ruleIndex": rules.index(finding.kind),
        "level": "error",
        "message": {"text": finding_text(finding)},
        "properties": {"kernel": finding.kernel, "engine": finding.engine},
    }
    if finding.source is not None:
        result["locations"] = [_location(finding.source)]
    if finding.other is not None:
        result["relatedLocations"] = [_location(finding.other)]
    return result


def _location(source: SourceLine) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": source.line}
    if source.text:
        region["snippet"] = {"text": source.text}
    return {"physicalLocation": {"artifactLocation": {"uri": below(source.file)}, "region": region}}
