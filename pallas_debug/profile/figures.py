"""A number with its origin: the compiler's, derived by us, or an assumption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["compiler", "derived", "assumed"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of a kernel's profile.

    Attributes:
      value: None if it is not available; missing data is never zero.
      origin: `compiler` if libtpu wrote it, `derived` if it follows from what libtpu wrote,
        `assumed` if part of it is an assumption, which `note` states.
      unit: `bytes`, `cycles`; empty for a plain count.
      note: how it was obtained, what was assumed, or why it is missing.
      formula: the figure in terms of what is unknown, such as `1,520 + 612 n`; None if it is known.
    """

    value: int | float | None
    origin: Origin = "derived"
    unit: str = ""
    note: str = ""
    formula: str | None = None

    @property
    def is_known(self) -> bool:
        return self.value is not None

    def __str__(self) -> str:
        return self.formula if self.value is None and self.formula else shown(self.value)


def missing(note: str, *, unit: str = "") -> Figure:
    """A figure that is not available, and why."""
    return Figure(value=None, origin="derived", unit=unit, note=note)


def shown(value: int | float | None) -> str:
    """Print a number with separators; `-` if there is none."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
