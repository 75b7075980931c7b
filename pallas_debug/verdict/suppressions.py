"""Suppressions: findings that do not count, each with a reason.

They are read from a TOML file, by default `pallas-debug.toml` in the project:

    [[suppress]]
    kind = "PaddingRead"
    kernel = "ragged_*"        # and line = "rows.py:12", operand = "x_ref", where they matter
    reason = "the caller cuts the padding off"

`kind` and `reason` are required; other keys match everything if omitted.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Annotated

import msgspec

from pallas_debug.errors import UsageError
from pallas_debug.findings.faults import named
from pallas_debug.model import Finding
from pallas_debug.verdict.result import Suppressed
from pallas_debug.verdict.table import DIGITS

FILE = "pallas-debug.toml"

_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Suppression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suppression rule.

    `kernel` may contain `*`, and the digits that the table adds to a name that several kernels
    share; `line` is `file.py:12` or `file.py`.
    """

    kind: _Text
    reason: _Text
    kernel: str | None = None
    line: str | None = None
    operand: str | None = None

    def fits(self, finding: Finding) -> bool:
        """Return whether the rule matches a finding."""
        names = finding.kernel, f"{finding.kernel}-{finding.digest[:DIGITS]}"
        return (
            named(self.kind) is finding.kind
            and (self.kernel is None or any(fnmatch.fnmatchcase(n, self.kernel) for n in names))
            and (self.operand is None or self.operand == finding.operand)
            and (self.line is None or self.line in _lines(finding))
        )

    def __str__(self) -> str:
        given = [(key, getattr(self, key)) for key in ("kind", "kernel", "line", "operand")]
        return ", ".join(f"{key} {value}" for key, value in given if value is not None)


def _lines(finding: Finding) -> tuple[str, ...]:
    if finding.source is None:
        return ()
    path, line = PurePath(finding.source.file), finding.source.line
    tails = ["/".join(path.parts[-n:]) for n in range(1, len(path.parts) + 1)]
    return tuple(end for tail in tails for end in (tail, f"{tail}:{line}"))


def read(path: Path) -> tuple[Suppression, ...]:
    """Read the suppressions of a file.

    Raises:
      UsageError: the file is unreadable, not TOML, or has an invalid suppression; the message says
        where.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    try:
        return msgspec.convert(found.get("suppress", []), tuple[Suppression, ...])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {error}, counted from 0; a [[suppress]] has a kind and a reason, and may "
            "have a kernel, a line and an operand, all of them text"
        ) from error


def apply(
    findings: Sequence[Finding], suppressions: Iterable[Suppression]
) -> tuple[tuple[Finding, ...], tuple[Suppressed, ...], tuple[str, ...]]:
    """Split findings into counted and suppressed ones; list unused suppressions."""
    kept, left_out = [], []
    known = list(suppressions)
    used: set[Suppression] = set()
    for finding in findings:
        fitting = next((s for s in known if s.fits(finding)), None)
        if fitting is None:
            kept.append(finding)
        else:
            used.add(fitting)
            left_out.append(Suppressed(finding=finding, reason=fitting.reason))
    idle = tuple(
        f"the suppression of {s} matches no finding; remove it" for s in known if s not in used
    )
    return tuple(kept), tuple(left_out), idle
