"""The checks by name, and as one writes a choice of them."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.bridge.instrument import checking
from pallas_debug.errors import UsageError

CHECKS: dict[str, str] = {
    "user": "`checkify.check` and `pl.debug_check` that fail",
    "nan": "a NaN made of operands that were none",
    "inf": "an infinity made of operands that were finite; not among the default ones",
    "index": "a slice, a copy or a block that leaves its array",
    "div": "an integer divided by zero",
    "float_div": "a float divided by zero; not among the default ones",
    "hint": "a `pl.multiple_of` that is not true",
    "uninitialized": "a scratch buffer, output or padding that is read before it was written, "
    "where the NaN it holds reaches an output (interpret modes only)",
}
"""What each check looks for."""

DEFAULT = checking.DEFAULT

ALL = "all"


def parse(text: str | Iterable[str]) -> tuple[str, ...]:
    """`"user,nan"`, `"all"`, or names, in the order in which they are listed in `CHECKS`.

    Raises:
      UsageError: a check that there is not.
    """
    names = text.split(",") if isinstance(text, str) else list(text)
    names = [name.strip() for name in names if name.strip()]
    if names == [ALL]:
        return tuple(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    if unknown or not names:
        what = f"unknown check {unknown[0]!r}" if unknown else "no check is named"
        raise UsageError(f"{what}; there are {', '.join(CHECKS)}, and all of them by {ALL!r}")
    return tuple(name for name in CHECKS if name in names)
