"""Facts about results that differ from a reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pallas_debug.findings.facts import Point, listed, where
from pallas_debug.model import Link, SourceLine

# Patterns


SpecialKind = Literal["NaN", "infinite", "zero"]


class DifferingPattern(NamedTuple):
    """Where elements differ.

    Attributes:
      shape: shape of the array.
      slices: smallest range along each dimension that contains all of them.
      special: what each of them is, if it is one of these.
    """

    shape: Sequence[int]
    slices: Sequence[range]
    special: SpecialKind | None = None

    def __str__(self) -> str:
        """Format the ranges that are not whole, and what is outside: `rows 8 to 15, none in …`."""
        ranks = range(len(self.shape) - 1, -1, -1)
        parts = [
            _range_text(("columns", "rows")[rank] if rank < 2 else f"dimension {d} at", one, size)
            for d, (rank, one, size) in enumerate(zip(ranks, self.slices, self.shape, strict=True))
            if len(one) < size
        ]
        return ", ".join([*parts, *([f"each is {self.special}"] if self.special else [])])


def _range_text(unit: str, one: range, size: int) -> str:
    first, last = one[0], one[-1]
    step = f" in steps of {one.step}" if one.step > 1 else ""
    outside = [_span(0, first - 1)] * (first > 0) + [_span(last + 1, size - 1)] * (last < size - 1)
    none = f", none in {' and '.join(outside)}" if outside else ""
    return (
        f"in {unit.removesuffix('s') if first == last else unit} {_span(first, last)}{step}{none}"
    )


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


# Writers


class ChainPlace(NamedTuple):
    """A line, at a grid point and in iterations of the loops around it."""

    line: SourceLine | None
    point: Point = ()
    iterations: Point = ()

    def __str__(self) -> str:
        return where(self.line)


CauseKind = Literal["replaced", "not reset", "left over", "where true", "where false"]


@dataclass(frozen=True, kw_only=True)
class ChainCause:
    """Something certain about a chain that explains a wrong value.

    Attributes:
      place: line to look at: of the write that replaces another, of the read, or of the condition
        whose value the wrong elements share.
      other: the other side: the write that is replaced, that the value began with, that is read, or
        that is wrong.
    """

    kind: CauseKind
    place: ChainPlace
    other: ChainPlace
    buffer: str = ""

    @property
    def replaced(self) -> str:
        """Line of the other side, or `it` if that is the same."""
        return "it" if str(self.place) == str(self.other) else str(self.other)


@dataclass(frozen=True, kw_only=True)
class WriterChain:
    """Writers behind an element of an output, newest first.

    Attributes:
      block: the block that contains it, as `8:16, 0:128`; empty if the output has no blocks.
      written: grid point after which the block was last written back, or ().
      is_missing: whether no step writes the element.
      unknown: why the writers are unknown, as the end of a sentence.
    """

    element: Point = ()
    block: str = ""
    written: Point = ()
    links: tuple[Link, ...] = ()
    cause: ChainCause | None = None
    is_missing: bool = False
    unknown: str = ""

    @property
    def place(self) -> str:
        """The block of the element, and the grid point after which it was written back."""
        point = f" of grid point {self.written}" if self.written else ""
        return f"in block [{self.block}]{point}" if self.block else ""

    @property
    def witness(self) -> dict[str, Any]:
        """Facts of a witness: the line that the cause is about, or else that of the last write."""
        if self.cause is not None:
            at, other = self.cause.place, self.cause.other
            place = {"source": at.line, "grid_point": at.point, "loop": at.iterations}
            return {**place, "other": other.line}
        if not self.links:
            return {} if self.unknown else {"grid_point": self.written or None}
        newest = self.links[0]
        return {"source": newest.source, "grid_point": newest.grid_point, "loop": newest.loop}


Verb = Literal["sets", "updates", "copies to", "reads"]


def action(
    verb: Verb, buffer: str, names: Sequence[str] = (), *, is_constant: bool = False,
    count: int = 1, output: str = "",
) -> str:  # fmt: skip
    """Describe what a line does to a buffer: `sets out_ref from acc_ref, 4 times`.

    Args:
      names: what the value is computed from, apart from the buffer itself.
      is_constant: whether it is computed from no memory at all.
      output: name of the output, if it is done for another block of that.
    """
    text = f"{verb} {buffer}"
    if verb == "copies to":
        text = f"copies {listed(names)} to {buffer}"
    elif is_constant and verb == "sets":
        text += " to a constant"
    elif names:
        text += f" from {listed(names)}"
    text += f", {count:,} times" if count > 1 else ""
    return text + (f", for another block of {output}" if output else "")
