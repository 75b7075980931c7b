"""GitHub workflow commands: one line per finding, shown next to the code."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pallas_debug.model import Finding
from pallas_debug.render import below, finding_lines
from pallas_debug.verdict.result import Verdict


def lines(verdict: Verdict) -> list[str]:
    """Format each finding as `::error file=rows.py,line=12,title=OutOfBoundsRead in gather::…`.

    A requested judgement that was not made is an error too; a finding that rests on made-up values
    is a warning, and a limitation of an engine a notice.
    """
    found = [_annotation(verdict.labelled(finding)) for finding in verdict.findings]
    for gap in verdict.gaps:
        how = "judged in part" if gap.is_partial else "not judged"
        title = f"{how}: {gap.kernel} {gap.engine}"
        found.append(_command("notice" if gap.is_limit else "error", {"title": title}, gap.reason))
    found += [_command("error", {"title": "not done"}, problem) for problem in verdict.problems]
    return found


def quoted(text: str, token: str | None = None) -> str:
    """Wrap text so that the runner does not interpret commands in it.

    Names and messages come from the code under test. The runner interprets any line that begins
    with `::` as a command, even with spaces before it.

    Args:
      token: ends the quotation; random by default, so that it cannot be guessed.
    """
    token = token or secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def _annotation(finding: Finding) -> str:
    properties = {"title": f"{finding.kind} in {finding.kernel}"}
    if finding.source is not None:
        line = {"file": below(finding.source.file), "line": str(finding.source.line)}
        properties = line | properties
    return _command(
        "error" if finding.counts else "warning",
        properties,
        "\n".join(finding_lines(finding, verbose=True)),
    )


def _command(name: str, properties: Mapping[str, str], text: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
