"""Check names: the faults that each selects, and parsing of a user's selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pallas_debug.defaults import CHECKS as CHECKS
from pallas_debug.errors import UsageError, meant
from pallas_debug.findings.faults import Fault, Severity
from pallas_debug.model import Finding

ALL = "all"

KINDS: Mapping[str, frozenset[Fault]] = {
    "user": frozenset({Fault.CHECK_FAILED}),
    "nan": frozenset({Fault.NAN_PRODUCED}),
    "inf": frozenset({Fault.INFINITY_PRODUCED}),
    "index": frozenset(kind for kind in Fault if kind.severity is Severity.BOUNDS),
    "div": frozenset({Fault.DIVISION_BY_ZERO}),
    "float_div": frozenset(),
    "hint": frozenset({Fault.FALSE_HINT}),
    "uninitialized": frozenset(
        {Fault.UNINITIALIZED_READ, Fault.OUTPUT_NOT_WRITTEN, Fault.PADDING_READ}
    ),
}
"""Faults that each check selects. `float_div` selects the NaN or infinity that a division by zero
produces, see `selects`."""


def selects(checks: Iterable[str], finding: Finding) -> bool:
    """Return whether one of these checks looks for a fault, or for a consequence of it.

    A fault that stops the program is always selected, because the rest of it was not checked.
    """
    if finding.kind.severity is Severity.STOPS:
        return True
    checks = tuple(checks)
    kinds = frozenset().union(*(KINDS[name] for name in checks))
    return (
        finding.kind in kinds
        or ("float_div" in checks and Fault.DIVISION_BY_ZERO in finding.comes_of)
        or any(selects(checks, consequence) for consequence in finding.consequences)
    )


def parse(text: str | Iterable[str]) -> tuple[str, ...]:
    """Parse `"user,nan"`, `"all"` or an iterable of names; results are in the order of `CHECKS`.

    Raises:
      UsageError: a check is unknown, there is none, or the value is not a list of names.
    """
    names = text.split(",") if isinstance(text, str) else list(text)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"checks are named by strings, such as 'nan,index', but this {type(text).__name__} "
            "contains other values; pass the function's arguments to the result of check: "
            "check(function)(x)"
        )
    names = [name.strip() for name in names if name.strip()]
    if names == [ALL]:
        return tuple(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown or not names:
        hint = meant(unknown[0], [*CHECKS, ALL]) if unknown else ""
        what = f"unknown check {unknown[0]!r}{hint}" if unknown else "no check is named"
        raise UsageError(f"{what}; there are {', '.join(CHECKS)}, and {ALL!r} for all of them")
    return tuple(name for name in CHECKS if name in names)
