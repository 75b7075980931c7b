"""Findings of one test, as the text of its failure. No jax, no session.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from pallas_debug import render
from pallas_debug.findings.collector import Key, key
from pallas_debug.model import Finding, Hint
from pallas_debug_pytest.callers import Callers

MAX_LINES = 15
"""Maximum lines per finding, because a user's message may have any length."""
MAX_FINDINGS = 5
MAX_HINTS = 3
MAX_KERNELS = 10


def counts(findings: Iterable[Finding]) -> Counter[Key]:
    return Counter({key(finding): finding.count for finding in findings})


def text(
    findings: Sequence[Finding], record: Path | None = None, callers: Callers | None = None
) -> str:
    """Return the first findings in full, the number of others, and the file that has all of them.

    Args:
      findings: findings of one test.
      record: file in the dump directory that contains all of them.
      callers: lines of the test that called the kernels; None where a traceback shows them.
    """
    shown = findings[:MAX_FINDINGS]
    whole = [render.finding_text(finding) for finding in shown]
    parts = [_cut(words) + _called(callers, f) for words, f in zip(whole, shown, strict=True)]
    more = len(findings) - MAX_FINDINGS
    if more > 0:
        parts.append(f"… and {more} more")
    if record is not None and (more > 0 or any(_cut(words) != words for words in whole)):
        parts.append(f"all of them: cat {render.relative(record)}")
    return "\n".join(parts)


def hints(found: Iterable[Hint], digests: Container[str]) -> str:
    """List the first hints for the kernels of a failed test, each in one line; empty if none.

    Args:
      digests: digests of the kernels.
    """
    mine = [hint for hint in dict.fromkeys(found) if hint.digest in digests]
    return "\n".join(render.hint_text(hint) for hint in mine[:MAX_HINTS])


def used_kernels(dumped: Mapping[str, bool]) -> str:
    """List the kernels of a failed test, those with findings first, and how to show one.

    Args:
      dumped: the folder of each kernel, and whether the kernel has a finding.
    """
    folders = sorted(dumped, key=lambda folder: not dumped[folder])
    lines = [f"{render.plural(len(folders), 'kernel')} used by this test:"]
    lines += [f"  {folder}" for folder in folders[:MAX_KERNELS]]
    if len(folders) > MAX_KERNELS:
        lines.append(f"  … and {len(folders) - MAX_KERNELS} more")
    lines.append(f"show one: pallas-debug show {render.typed(folders[0])}")
    return "\n".join(lines)


def _called(callers: Callers | None, finding: Finding) -> str:
    line = callers.of(finding) if callers is not None else None
    return f"\n  called from {render.quoted(line)}" if line is not None else ""


def _cut(words: str) -> str:
    lines = words.splitlines()
    if len(lines) <= MAX_LINES:
        return words
    return "\n".join([*lines[: MAX_LINES - 1], f"  … {len(lines) - MAX_LINES + 1} more lines"])
