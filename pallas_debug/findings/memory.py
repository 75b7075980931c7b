"""Facts about faults of memory: how much is affected, and who writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pallas_debug.findings.facts import Point, lines_text


class Count(NamedTuple):
    """Number of affected elements or blocks, and of all."""

    affected: int
    total: int
    of: str = "elements"

    def __str__(self) -> str:
        return f"{self.affected:,} of {self.total:,} {self.of}"


def some(affected: int, total: int, of: str = "elements") -> Count | None:
    """Count of the affected ones; None if all are."""
    return Count(affected, total, of) if affected < total else None


def first_of(element: str, affected: Count | None) -> str:
    """Name the first affected element, with the number of affected ones unless all are."""
    return f"{affected}, starting with {element}" if affected else element


def writes_text(lines: Sequence[int], first: Point) -> str:
    """Name the lines that write a buffer, and the first grid point at which one of them ran."""
    return lines_text(lines) + (f", first at grid point {first}" if first else "")


def step_text(point: Point, loop: Point) -> str:
    """Name a grid point, and the iterations of the loops around a line."""
    at = [f"grid point {point}"] if point or not loop else []
    return ", ".join([*at, f"loop iteration {loop}"] if loop else at)


WhyUnwritten = Literal["condition", "stores", "rounded down", "left out"]
"""Why an output is not written: every store is conditional, the stores or copies leave a part out,
the grid has too few steps for the last, partial block, or no grid point visits a block."""
