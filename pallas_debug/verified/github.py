"""Findings as a GitHub workflow's log takes them: one line each, shown beside the code."""

from __future__ import annotations

from pallas_debug.model import Finding
from pallas_debug.verified.paths import below
from pallas_debug.verified.result import Verdict


def lines(verdict: Verdict) -> list[str]:
    """`::error file=rows.py,line=12,title=OutOfBoundsRead in gather::…`, one for each finding."""
    return [_annotation(finding) for finding in verdict.findings]


def _annotation(finding: Finding) -> str:
    properties = {"title": f"{finding.kind} in {finding.kernel}"}
    if finding.source is not None:
        line = {"file": below(finding.source.file), "line": str(finding.source.line)}
        properties = line | properties
    words = [finding.message]
    words += [f"cause: {finding.cause}"] if finding.cause else []
    words += [f"try: {finding.advice}"] if finding.advice else []
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::error {given}::{_data(chr(10).join(words))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
