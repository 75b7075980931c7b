"""Facts about numerical faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.findings.facts import text_of


@dataclass(frozen=True, kw_only=True)
class FloatOperation:
    """An operation that produced a NaN or infinity.

    Attributes:
      result: type of the result.
      values: operands at `element`; empty if they were not recorded, or if it depends on many.
      operands: types of the operands.
      ranges: smallest and largest number of each operand, if known.
    """

    name: str
    result: str
    values: Sequence[float]
    operands: Sequence[str]
    ranges: Sequence[tuple[float, float]] = ()
    element: Sequence[int] = ()

    def __str__(self) -> str:
        ranges = [f" of {text_of(low)} to {text_of(high)}" for low, high in self.ranges]
        types = map("".join, zip(self.operands, ranges or [""] * len(self.operands), strict=True))
        operands = " and ".join(map(text_of, self.values)) or f"operands {' and '.join(types)}"
        at = f" at {list(self.element)} of {self.result}" if self.element else ""
        return f"from {operands}{at or f'; result {self.result}'}"

    @property
    def divides_by_zero(self) -> bool:
        return self.name in ("div", "rem") and list(self.values[1:]) == [0]

    @property
    def is_of_zero(self) -> bool:
        is_singular = self.name in ("rsqrt", "reciprocal", "log")
        return self.divides_by_zero or (is_singular and list(self.values) == [0])
