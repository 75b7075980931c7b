"""Bytes, counts and shares as text."""

from __future__ import annotations


def size_text(count: float, decimals: int = 1) -> str:
    """Format bytes: `96 B`, `512 KiB`, `9.1 MiB`; trailing zeros are left out."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count, unit = count / 1024, larger
    text = f"{count:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def percent(share: float, decimals: int = 0, *, signed: bool = False) -> str:
    """Format a share: `71 %`, `16.9 %`; a change with its sign, `-16.9 %`."""
    return f"{100 * share:{'+' if signed else ''}.{decimals}f} %"


def short(count: float) -> str:
    """Format a count with three digits: `847`, `12.3k`, `1.96M`."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * limit:
            return f"{count / limit:.3g}{letter}"
    return f"{count:.3g}"
