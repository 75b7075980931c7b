"""Facts about out-of-bounds accesses and blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pallas_debug.findings.facts import where
from pallas_debug.model import SourceLine


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A slice of which elements are out of bounds.

    Attributes:
      dim, bound: the dimension that it leaves, and its size.
      size: None if the index is a number.
    """

    dim: int
    start: int
    size: int | None
    bound: int
    stride: int = 1

    def __str__(self) -> str:
        if self.is_negative:
            return f"begins {-self.start} before the start"
        return f"reaches {self.start - self.last} past the end"

    @property
    def is_negative(self) -> bool:
        return self.start < 0

    @property
    def last(self) -> int:
        """Largest start within bounds; negative if the slice is too large for the dimension."""
        return self.bound - 1 - ((self.size or 1) - 1) * self.stride

    @property
    def keep(self) -> str:
        """Advice to stay within bounds."""
        if self.last < 0:
            return f"access at most {self.bound} elements"
        is_one = self.size in (None, 1)
        last = f"{self.last}" if is_one else f"{self.bound} - {self.bound - self.last}"
        return f"keep the index between 0 and {last}"


def computed(line: SourceLine | None, beside: SourceLine | None) -> str | None:
    """Name the line that computes an index; `beside` is that of the access."""
    if line is None:
        return None
    return where(line, beside) + (f", `{line.text}`" if line.text else "")


class CopyOf(NamedTuple):
    """Source and destination of a copy."""

    source: str
    destination: str

    def __str__(self) -> str:
        return f"{self.source} to {self.destination}"


@dataclass(frozen=True, kw_only=True)
class MissingBlock:
    """An index that an index map returns, of a block or element that the array does not have.

    Attributes:
      first, last: the smallest and largest index that the array has.
    """

    dim: int
    value: int
    last: int
    first: int = 0
    is_element: bool = False

    @property
    def unit(self) -> str:
        return "element" if self.is_element else "block"

    @property
    def is_negative(self) -> bool:
        return self.value < 0

    @property
    def held(self) -> str:
        """Number of blocks, or elements, of the array."""
        return f"{self.last + 1} {self.unit}{'s' if self.last else ''}"
