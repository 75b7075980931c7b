"""Cases of out-of-bounds accesses and blocks, and of devices that a mesh does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallas_debug.findings.case import Case, Facts, Test, both, has, is_
from pallas_debug.findings.facts import Point, where
from pallas_debug.findings.faults import Fault
from pallas_debug.model import SourceLine

# Facts


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A slice of which elements are out of bounds.

    Attributes:
      dim, bound: the dimension that it leaves, and its size.
      size: None if the index is a number.
      scratch: name of the memory, if it is scratch.
    """

    dim: int
    start: int
    size: int | None
    bound: int
    stride: int = 1
    scratch: str | None = None

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
        if self.bound == 1:
            return "use index 0, the only one"
        is_one = self.size in (None, 1)
        last = f"{self.last}" if is_one else f"{self.bound} - {self.bound - self.last}"
        return f"keep the index between 0 and {last}"

    @property
    def enlarge(self) -> str:
        return f"make {self.scratch} larger" if self.scratch else "pad the array"

    @property
    def clamp(self) -> str:
        """Expression that clamps the index `i`."""
        return "jnp.maximum(i, 0)" if self.start < 0 else f"jnp.minimum(i, {self.bound - 1})"


@dataclass(frozen=True)
class Computed:
    """The line that computes an index, and that of the access."""

    line: SourceLine
    beside: SourceLine | None

    def __str__(self) -> str:
        text = f", `{self.line.text}`" if self.line.text else ""
        return where(self.line, self.beside) + text


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
      size: size of a block.
      point: the grid point, if known.
    """

    dim: int
    value: int
    last: int
    size: int
    first: int = 0
    is_element: bool = False
    point: Point | None = None

    @property
    def unit(self) -> str:
        return "element" if self.is_element else "block"

    @property
    def held(self) -> str:
        """Number of blocks, or elements, of the array."""
        return f"{self.last + 1} {self.unit}{'s' if self.last else ''}"

    @property
    def steps(self) -> str:
        return f"{self.last + 1} step{'s' if self.last else ''}"

    @property
    def allowed(self) -> str:
        is_one = self.first == self.last
        return f"{self.first}" if is_one else f"a value between {self.first} and {self.last}"

    @property
    def times(self) -> int:
        return self.value // self.size

    @property
    def is_offset(self) -> bool:
        """True if it is a program id times the size of a block, and not just a program id."""
        if self.is_element or self.size < 2 or self.value % self.size or self._axes:
            return False
        is_within = self.value > 0 and self.times <= self.last
        return is_within and (not self.point or self.times in self.point)

    @property
    def axis(self) -> int | None:
        """The grid axis that the index follows."""
        is_followed = len(self._axes) == 1 and not self.is_element
        return self._axes[0] if is_followed else None

    @property
    def _axes(self) -> list[int]:
        return [axis for axis, at in enumerate(self.point or ()) if at == self.value]


# Cases

_NEGATIVE = "a negative index does not count from the end, unlike in NumPy"
_FROM = "the index comes from {origin}, and nothing keeps it within bounds"
_BOUNDED = "the index is not bounded by the shape of the ref"
_COMPUTED = "the index comes from {computed}, "


def _starts_before(facts: Facts) -> object:
    return facts.slice.start < 0


def _access(cause: str, when: Test | None = None, keep: str = "{slice.keep}") -> Case:
    return Case(
        "{index} {slice} of dimension {slice.dim} of {shape}{copy:, in the copy of %}",
        cause,
        f"{keep}, or {{slice.enlarge}}"
        "{is_fetched:%; do not start a copy when nothing is left to fetch}",
        when,
    )


_ACCESSES = [
    _access(
        "`emit_pipeline` rounds the size of a slice up to whole tiles and assumes that the slice "
        "begins at a tile; this one begins at {slice.start:d}{origin: (from %)}, and its size is "
        "rounded to {slice.size:d}",
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
    _access(_FROM, has("origin")),
    _access(f"{_COMPUTED}and {_NEGATIVE}", both(has("computed"), _starts_before)),
    _access(
        f"{_COMPUTED}which does not keep it within one block",
        has("computed", "is_block"),
    ),
    _access(f"{_COMPUTED}which does not keep it within bounds", has("computed")),
    _access(_NEGATIVE, _starts_before),
    _access(
        "the index follows a loop that runs past the end of the operand", is_("follows", "loop")
    ),
    _access(f"{_BOUNDED}, which is a single block", has("is_block")),
    _access(
        "the index follows the grid point past the end of the operand",
        is_("follows", "grid"),
    ),
    _access(_BOUNDED),
]


def _discarded(case: Case) -> Case:
    return Case(
        f"{case.message}; no result depends on the value",
        case.cause,
        "clamp the index before the read, as in `table[{slice.clamp}]`: a read outside the table "
        "returns whatever lies next to it",
        both(has("is_discarded"), case.when),
    )


_TABLES = [
    Case(
        "the index map of {map_of} reads {operand} at index {slice.start:d} of dimension "
        "{slice.dim}, which has size {slice.bound:d}",
        cause,
        "keep the index between 0 and {slice.last:d}",
        both(has("map_of"), when),
    )
    for cause, when in (
        (_NEGATIVE, _starts_before),
        ("the grid is larger than the table", has("is_small")),
        ("the index map does not keep the index within the table", has("map_of")),
    )
]

_SIZES = Case(
    "the copy of {copy} copies {taken} along dimension {dim}, but its destination has {room}",
    "the two slices have different sizes{origin:: they come from %}",
    "give both slices the same size",
    lambda f: f.room is not None,
)

_POSITIONS = [
    Case(
        "the {copy:copy of %}{signal:signal of %} goes to {unit} {value}"
        "{axis: along mesh axis '%'}; there are {unit}s 0 to {last}",
        "nothing keeps `device_id` within the mesh",
        f"wrap the position around{how}; if the mesh is not a ring, skip the {{unit}} at "
        "its end with `pl.when`",
        when,
    )
    for how, when in (
        (
            " before it becomes negative, as in `lax.rem(i + {last}, {total})` for the "
            "one before `i`: `lax.rem` of a negative number is negative",
            lambda f: f.total and f.value < 0,
        ),
        (", as in `lax.rem(i + 1, {total})`", has("total")),
    )
]

_CHECK = "check the table before the call, or clamp the index in the index map"
_RETURN = "return {block.allowed}"


_BLOCK = (
    "the index map of {operand} returns {block.unit} {block.value:d} along dimension {block.dim} "
    "of {array}, which has {block.held}{points:; it is out of bounds at {count} of % grid points}"
)

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.OUT_OF_BOUNDS_READ: [_SIZES, *_TABLES, *map(_discarded, _ACCESSES), *_ACCESSES],
    Fault.OUT_OF_BOUNDS_WRITE: [_SIZES, *_POSITIONS, *_ACCESSES],
    Fault.BLOCK_OUT_OF_BOUNDS: [
        Case(_BLOCK, _FROM, _CHECK, has("origin")),
        Case(
            _BLOCK,
            "an index map returns block indices, and this looks like an element offset: "
            "{block.value:d} is {block.times:d} x {block.size:d}",
            f"{_RETURN}: `i` rather than `i * {{block.size:d}}`",
            lambda f: f.block.is_offset,
        ),
        Case(
            _BLOCK,
            "the index map takes the block from a scalar-prefetch operand without checking it",
            _CHECK,
            has("is_from_table"),
        ),
        Case(_BLOCK, _NEGATIVE, _RETURN, lambda f: f.block.value < 0),
        Case(
            _BLOCK,
            "the index equals the grid point along grid dimension {block.axis}, which has more "
            "steps than the array has blocks along this dimension",
            "give dimension {block.axis} of the grid {block.steps}, or return a different index "
            "there",
            lambda f: f.block.axis is not None,
        ),
        Case(_BLOCK, "the index map goes past the last {block.unit}", _RETURN),
    ],
}
