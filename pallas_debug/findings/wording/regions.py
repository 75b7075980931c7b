"""Wording of patterns: where elements differ, and whether they are NaN, infinite or zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpecialKind = Literal["NaN", "infinite", "zero"]


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
class SpecialValues:
    """Differing elements that are NaN, infinite or zero.

    Attributes:
      share: share of the differing elements.
    """

    kind: SpecialKind
    share: float = 1.0


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


def special_text(special: SpecialValues) -> str:
    """Describe special values: `each is NaN`, `25% of these are zero`."""
    if special.share == 1:
        return f"each is {special.kind}"
    return f"{_percent(special.share)} of these are {special.kind}"
