"""Cases of out-of-bounds accesses and blocks, and of devices that a mesh does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallas_debug.findings.case import Case, Test, has
from pallas_debug.findings.facts import where
from pallas_debug.findings.faults import Fault
from pallas_debug.model import SourceLine

# Facts


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
        if self.start < 0:
            return f"begins {-self.start} before the start"
        return f"reaches {self.start - self.last} past the end"

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
    def held(self) -> str:
        """Number of blocks, or elements, of the array."""
        return f"{self.last + 1} {self.unit}{'s' if self.last else ''}"


# Cases

_FROM = "the index comes from {origin}, and nothing keeps it within bounds"
_NEGATIVE = "a negative index does not count from the end, unlike in NumPy"


def _access(cause: str, when: Test | None = None, advice: str = "{slice.keep}") -> Case:
    return Case(
        "{index} {slice} of dimension {slice.dim} of {shape}{copy:, in the copy of %}"
        "{is_discarded:; no result depends on the value%}",
        cause,
        advice + ", or pad the array",
        when,
    )


_ACCESSES = [
    _access(
        "`emit_pipeline` rounds sizes up to whole tiles, this one to {slice.size:d}; it begins at "
        "{slice.start:d}{origin: (from %)}",
        has("is_rounded"),
        "begin each slice at a tile boundary",
    ),
    _access(
        "the mask is true for elements outside dimension {slice.dim}, which has size "
        "{slice.bound:d}",
        has("is_masked"),
        "let the mask be false for these elements, as in `index < {slice.bound:d}`",
    ),
    _access(
        "the block reaches past the end of its array, and jax before 0.12 does not mask that",
        has("is_ragged"),
        "mask the access, as in `plt.load({operand}, mask=index < {slice.bound:d}, other=0)`",
    ),
    _access(
        "{origin:the index comes from %, and }" + _NEGATIVE, lambda facts: facts.slice.start < 0
    ),
    _access(_FROM, has("origin")),
    _access("the index is not bounded by the shape of the ref"),
]

_TABLE = Case(
    "the index map of {map_of} reads {operand} at index {slice.start:d} of dimension {slice.dim}, "
    "which has size {slice.bound:d}",
    "the index map does not keep the index within the table",
    "keep the index between 0 and {slice.last:d}",
    has("map_of"),
)

_SIZES = Case(
    "the copy of {copy} copies {taken} along dimension {dim}, but its destination has {room}",
    "the two slices have different sizes{origin:: they come from %}",
    "give both slices the same size",
    lambda f: f.room is not None,
)

_POSITION = Case(
    "the {copy:copy of %}{signal:signal of %} goes to {unit} {value}{axis: along mesh axis '%'}; "
    "there are {unit}s 0 to {last}",
    "nothing keeps `device_id` within the mesh",
    "wrap it around, as in `lax.rem(i + {total}, {total})`, or skip the last {unit} with `pl.when`",
    has("total"),
)

_CHECK = "check the table before the call, or clamp the index in the index map"
_RETURN = "return a value between {block.first:d} and {block.last:d}: it counts {block.unit}s"
_BLOCK = (
    "the index map of {operand} returns {block.unit} {block.value:d} along dimension {block.dim} "
    "of {array}, which has {block.held}{points: (at {count} of % grid points)}"
)

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.OUT_OF_BOUNDS_READ: [_SIZES, _TABLE, *_ACCESSES],
    Fault.OUT_OF_BOUNDS_WRITE: [_SIZES, _POSITION, *_ACCESSES],
    Fault.BLOCK_OUT_OF_BOUNDS: [
        Case(_BLOCK, _FROM, _CHECK, has("origin")),
        Case(_BLOCK, _NEGATIVE, _RETURN, lambda f: f.block.value < 0),
        Case(_BLOCK, "the index map goes past the last {block.unit}", _RETURN),
    ],
}
