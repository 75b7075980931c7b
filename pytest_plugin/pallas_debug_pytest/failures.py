"""Text below a failed test: findings, hints, and the next command. No jax.

All of it together has at most `MAX_LINES` lines, the last of which is the command.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from pallas_debug import render
from pallas_debug.findings.collector import Key, key
from pallas_debug.model import Finding, Hint

MAX_LINES = 15
MAX_FINDINGS = 11
"""Maximum lines about findings: a hint, the kernels and the command follow."""

MAX_HINTS = 3
MAX_KERNELS = 3


def counts(findings: Iterable[Finding]) -> Counter[Key]:
    return Counter({key(finding): finding.count for finding in findings})


def text(findings: Sequence[Finding], callers: Mapping[Key, str], room: int) -> str:
    """Describe findings: the first in full, if it has room, and others by their titles if not.

    Args:
      findings: at least one finding.
      callers: line of the test that called the kernel, where it is known.
      room: maximum number of lines, at least 1.
    """
    lines: list[str] = []
    for number, finding in enumerate(findings):
        rest = len(findings) - number
        left = room - len(lines) - (rest > 1)  # the last line may have to count the others
        whole = render.finding_text(finding).splitlines()
        whole += [f"  called from {callers[key(finding)]}"] if key(finding) in callers else []
        if len(whole) <= left:
            lines += whole
        elif number == 0 and left > 1:
            lines += [*whole[: left - 1], f"  … {len(whole) - left + 1} more lines"]
        elif left > 0:
            source = finding.source
            where = f" at {render.relative(Path(source.file))}:{source.line}" if source else ""
            lines.append(whole[0] + where)
        else:
            lines.append(f"… and {render.plural(rest, 'more finding')}")
            break
    return "\n".join(lines)


def hints(found: Iterable[Hint], digests: Container[str]) -> str:
    """List the first hints for the kernels of a failed test, each in one line; empty if none.

    Args:
      digests: digests of the kernels.
    """
    mine = [hint for hint in dict.fromkeys(found) if hint.digest in digests]
    return "\n".join(render.hint_text(hint) for hint in mine[:MAX_HINTS])


def below(shown: int, parts: Iterable[str], dumped: Sequence[Path], command: str) -> str:
    """Return the section below a failure: parts, as far as there is room, kernels and command.

    Args:
      shown: lines that the failure itself has on findings.
      dumped: folders of the test's kernels.
    """
    lines = "\n".join(filter(None, parts)).splitlines()
    room = MAX_LINES - 3 - shown  # without the kernels, the command, and advice on the exception
    if len(lines) > room:
        lines = [*lines[: room - 1], "…"] if room > 0 else []
    if dumped:
        named = ", ".join(map(render.relative, dumped[:MAX_KERNELS]))
        more = f" and {len(dumped) - MAX_KERNELS} more" if len(dumped) > MAX_KERNELS else ""
        lines.append(f"{render.plural(len(dumped), 'kernel')} used by this test: {named}{more}")
    return "\n".join([*lines, f"next: {command}"])


def command(
    item: pytest.Item, findings: Iterable[Finding], dumped: Sequence[Path], *, is_verified: bool
) -> str:
    """Return the command that shows most about a failed test.

    A finding of the machine can be reached by stepping; otherwise its dump shows the kernel, and
    without a dump pytest can look for more.
    """
    name = item.nodeid.partition("::")[2]
    test = render.typed(f"{render.relative(item.path)}::{name}")
    for finding in findings:
        if "machine" in finding.engines:
            kernel = render.typed(finding.kernel)
            return f"pallas-debug step -x -k {kernel} -m pytest {test}"
    if dumped:
        return f"pallas-debug show {render.typed(render.relative(dumped[0]))}"
    return f"pytest {test} {'--pallas-dump' if is_verified else '--pallas-verify'}"
