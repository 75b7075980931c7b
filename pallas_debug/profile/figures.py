"""Numbers with their origin: reported by the compiler, derived, or assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["compiler", "derived", "assumed"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Number in a kernel's profile.

    Attributes:
      value: the number; None if it is not available. Missing data is never zero.
      origin: `compiler` if libtpu reports it, `derived` if it is derived from libtpu's output,
        `assumed` if it relies on an assumption, which `note` states.
      unit: unit such as `bytes` or `cycles`; empty for a plain count.
      note: how the number was obtained, what was assumed, or why it is missing.
      formula: the figure in terms of unknowns, such as `1,520 + 612 n`; None if it is known.
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
    """Make a figure for a number that is not available, with the reason."""
    return Figure(value=None, origin="derived", unit=unit, note=note)


def total(*figures: Figure, note: str | None = None) -> Figure:
    """Add figures of one unit; missing if one of them is.

    Args:
      note: note of the sum, instead of all their notes.
    """
    unit = figures[0].unit
    unknown = next((figure for figure in figures if figure.value is None), None)
    if unknown is not None:
        return missing(unknown.note, unit=unit)
    return Figure(
        value=sum(figure.value or 0 for figure in figures),
        origin=origin_of(*figures),
        unit=unit,
        note="; ".join(dict.fromkeys(f.note for f in figures if f.note)) if note is None else note,
    )


def origin_of(*figures: Figure) -> Origin:
    """Return the origin of a figure that is derived from others."""
    return "assumed" if any(figure.origin == "assumed" for figure in figures) else "derived"


def shown(value: int | float | None) -> str:
    """Format a number with separators; `-` if there is none."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
