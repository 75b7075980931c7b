"""Formatting of numbers and names; an unavailable value is a dash, never zero."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug import quantities

MISSING = "–"


def size(count: int | None) -> str:
    """`512 B`, `9.1 KiB`, `3 MiB`."""
    return MISSING if count is None else quantities.size_text(count)


def seconds(amount: float | None) -> str:
    """`15.1 µs`, `0.8 ms`, `12 ms`, `1.4 s`."""
    if amount is None:
        return MISSING
    if 0 < amount < 0.0001:
        return f"{amount * 1e6:.1f} µs"
    if amount < 0.00995:
        return f"{amount * 1000:.1f} ms"
    return f"{amount * 1000:.0f} ms" if amount < 0.9995 else f"{amount:.1f} s"


def number(amount: float | int | None) -> str:
    """`1,541`, `0.42`."""
    if amount is None:
        return MISSING
    if isinstance(amount, int) or amount == int(amount):
        return f"{int(amount):,}"
    return f"{amount:,.3g}" if abs(amount) < 1000 else f"{amount:,.0f}"


def percent(share: float | None) -> str:
    """`71 %`."""
    return MISSING if share is None else quantities.percent(share)


def dimensions(sizes: Sequence[int | None]) -> str:
    """`1 × 2 × 4`, with a mark for dimensions that are known only at run time."""
    return " × ".join("?" if n is None else f"{n:,}" for n in sizes)
