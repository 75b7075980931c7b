"""Check names, and parsing of a user's selection."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.defaults import CHECKS as CHECKS
from pallas_debug.errors import UsageError, meant

ALL = "all"


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
