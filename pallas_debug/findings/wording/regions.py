"""Wording of patterns: where elements differ, and how their values relate to the expected ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RelationKind = Literal[
    "nan",
    "infinite",
    "zero",
    "constant",
    "negated",
    "factor",
    "offset",
    "wrapped",
    "factor per slice",
    "shifted",
    "rotated",
    "transposed",
]
"""Relation of the values to the expected ones; `Relation` holds its numbers."""


@dataclass(frozen=True, kw_only=True)
class DifferingIndices:
    """Indices along one dimension at which elements differ.

    Attributes:
      size: size of the dimension.
      first, last: first and last of the indices.
      count: number of them.
      step: distance between them, if they are evenly spaced; None otherwise.
    """

    size: int
    first: int
    last: int
    count: int
    step: int | None

    @property
    def is_all(self) -> bool:
        return self.count == self.size


@dataclass(frozen=True, kw_only=True)
class DifferingRegion:
    """Smallest product of index sets that contains all differing elements.

    Attributes:
      dims: indices along each dimension.
      share: share of the region's elements that differ; 1 if all do.
    """

    dims: tuple[DifferingIndices, ...]
    share: float


@dataclass(frozen=True, kw_only=True)
class Relation:
    """Relation of differing elements to their expected values.

    Attributes:
      share: share of the differing elements for which it holds.
      number: the factor, offset, constant or power of two.
      other: expected constant for a constant, if it is one; largest factor for several factors.
      dim, by: dimension and distance of a shift; `dim` is negative, -1 for the last dimension. For
        a factor per slice, the dimension whose slices share a factor.
    """

    kind: RelationKind
    share: float = 1.0
    number: str = ""
    other: str = ""
    dim: int = -1
    by: int = 0


def region_text(region: DifferingRegion) -> str:
    """Describe a region: `the last 8 rows`, `every other column, from 1`, `half of column 3`."""
    rank = len(region.dims)
    named = [
        indices_text(one, noun(d - rank, rank))
        for d, one in enumerate(region.dims)
        if not one.is_all
    ]
    # Rows and columns first: they are the most informative.
    where = " of ".join(reversed(named)) if rank > 1 else "".join(named)
    if not where:
        where = "all elements" if rank else "the only element"
    if region.share == 1:
        return where
    share = "over 99.9%" if region.share > 0.999 else _percent(region.share)
    return f"{share} of {where}" if "elements" in where else f"{share} of the elements of {where}"


def noun(dim: int, rank: int) -> str:
    """Name of an index along a dimension, counted from the end: -1 is the last."""
    if rank == 1:
        return "element"
    return {-1: "column", -2: "row"}.get(dim, f"index of dimension {rank + dim}")


def _plural(name: str) -> str:
    if name.startswith("index"):
        return name.replace("index", "indices", 1)
    return f"{name}s"


def indices_text(one: DifferingIndices, name: str) -> str:
    """Describe indices along a dimension: `the last 8 rows`, `rows 2 to 4`."""
    head, _, rest = name.partition(" ")
    if one.count == 1:
        return f"{head} {one.first} {rest}".strip()
    span = f"{one.first} to {one.last}"
    if one.step == 1:
        if one.last == one.size - 1:
            return f"the last {one.count:,} {_plural(name)}"
        if one.first == 0:
            return f"the first {one.count:,} {_plural(name)}"
        return f"{_plural(head)} {span} {rest}".strip()
    reaches = one.step is not None and one.first < one.step and one.last + one.step >= one.size
    if one.step is not None and reaches and one.count > 2:
        every = "every other" if one.step == 2 else f"every {_ordinal(one.step)}"
        return f"{every} {name}, from {one.first}"
    if one.step is not None:
        if one.count == 2:
            return f"{_plural(head)} {one.first} and {one.last} {rest}".strip()
        return f"every {_ordinal(one.step)} {name}, from {span}"
    return f"{one.count:,} of {one.size:,} {_plural(name)}, from {span}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 <= number % 100 <= 20 else ending}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if 0.1 <= share <= 0.9 else f"{share:.1%}"


def relation_text(relation: Relation, rank: int) -> str:
    """Describe a relation: `each is 2 times what is expected`."""
    who = "each" if relation.share == 1 else f"{_percent(relation.share)} of these"
    verb = "is" if relation.share == 1 else "are"
    distance, name = abs(relation.by), noun(relation.dim, rank)
    names = _plural(name) if distance > 1 else name
    along = "after" if relation.by < 0 else "before"
    texts: dict[RelationKind, str] = {
        "nan": f"{who} {verb} NaN",
        "infinite": f"{who} {verb} infinite",
        "zero": f"{who} {verb} zero",
        "constant": f"{who} {verb} {relation.number}"
        + (f" where {relation.other} is expected" if relation.other else ", whatever is expected"),
        "negated": f"{who} {verb} the negative of what is expected",
        "factor": f"{who} {verb} {relation.number} times what is expected",
        "offset": f"{who} {verb} what is expected plus {relation.number}",
        "wrapped": f"{who} {verb} off by a multiple of {relation.number}",
        "factor per slice": "each "
        + {-1: "row", -2: "column"}.get(relation.dim, "slice")
        + f" has a factor of its own, from {relation.number} to {relation.other}",
        "shifted": f"{who} {verb} what is expected {distance:,} {names} {along} it",
        "rotated": f"{who} {verb} what is expected {distance:,} {names} {along} it, around the end",
        "transposed": f"{who} {verb} what is expected with row and column exchanged",
    }
    return texts[relation.kind]
