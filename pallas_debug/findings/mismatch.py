"""Cases of results that differ from a reference's, by what is behind the first wrong element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pallas_debug.findings.case import Case, Test
from pallas_debug.findings.facts import Point, listed, loop, where
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Link, SourceLine

# Patterns


SpecialKind = Literal["NaN", "infinite", "zero"]


class DifferingPattern(NamedTuple):
    """Where elements differ.

    Attributes:
      slices: smallest range along each dimension that contains all of them.
      special: what each of them is, if it is one of these.
    """

    slices: Sequence[range]
    special: SpecialKind | None = None

    def __str__(self) -> str:
        named = [
            f"{one.start}:{one.stop}" + (f":{one.step}" if one.step > 1 else "")
            for one in self.slices
        ]
        within = f"within [{', '.join(named)}]" if named else "the only element"
        return within + (f"; each is {self.special}" if self.special else "")


class RoundingError(NamedTuple):
    """The largest error of an output, in units of rounding.

    Attributes:
      dtype: least precise dtype that the kernel computes in.
      unit: distance from 1 to the next larger number of that dtype.
      size: largest expected magnitude, used as that of the sums behind it.
      units: largest error divided by `unit` times `size`.
      most: maximum number of units that rounding explains.
    """

    dtype: str
    unit: str
    size: str
    units: float
    most: int

    def __str__(self) -> str:
        return f"{self.units:.2g} units"


# Writers


class ChainPlace(NamedTuple):
    """A line, at a grid point and in iterations of the loops around it."""

    line: SourceLine | None
    point: Point = ()
    iterations: Point = ()

    def __str__(self) -> str:
        return where(self.line)


CauseKind = Literal["replaced", "not reset", "stored early", "left over"]


@dataclass(frozen=True, kw_only=True)
class ChainCause:
    """Something certain about a chain that explains a wrong value.

    Attributes:
      place: line to look at: of the write that replaces another, or of the read.
      other: the other side: the write that is replaced, that the value began with, that is read,
        or that comes too late.
    """

    kind: CauseKind
    place: ChainPlace
    other: ChainPlace
    output: str = ""
    buffer: str = ""

    @property
    def replaced(self) -> str:
        """Line of the other side, or `it` if that is the same."""
        return "it" if str(self.place) == str(self.other) else str(self.other)


MAX_SHOWN = 6
"""Maximum number of links of a chain in a message; `Finding.chain` has all."""


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

    def __str__(self) -> str:
        if self.unknown:
            return f"; what wrote it is unknown: {self.unknown}"
        if len(self.links) < 2:  # a single one is the finding's own line
            return ""
        texts = []
        for one in self.links[:MAX_SHOWN]:
            point = "" if one.grid_point is None else f" at {one.grid_point}"
            if one.since is not None:
                point = f" at {one.since} to {one.grid_point}"
            texts.append(f"{where(one.source)}{point}{loop(one.loop)} {one.action}")
        more = len(self.links) - MAX_SHOWN
        texts += [f"{more} more"] if more > 0 else []
        return "\nwriters, newest first: " + " < ".join(texts)

    @property
    def place(self) -> str:
        """Block of the element, as the beginning of a clause; empty without blocks."""
        point = f" of grid point {self.written}" if self.written else ""
        return f"in block [{self.block}]{point}: " if self.block else ""

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


# Cases


def _case(cause: str | None = None, advice: str | None = None, when: Test | None = None) -> Case:
    message = (
        "{what}, {array}: {count:,} of {total:,} elements differ from `{reference}` ({pattern}); "
        "first, {chain.place}{element} is {value}, expected {expected}; largest error {absolute}"
        "{relative: (relative %)}, allowed {allowed}"
        "{unjudged:; not compared: % where the reference is NaN}{chain}"
    )
    return Case(message, cause, advice, when)


def _because(kind: CauseKind) -> Test:
    return lambda facts: facts.because is not None and facts.because.kind == kind


CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.VALUE_MISMATCH: [
        _case(
            "no step of the kernel writes {element}: it holds whatever its memory held before",
            "does a grid point visit this block? Make the grid and the index map cover the array, "
            "with pl.cdiv; then look at the ranges, conditions and loops of the stores",
            lambda facts: facts.chain.is_missing,
        ),
        _case(
            "rounding alone can explain it: the largest error is {rounding} of {rounding.dtype} "
            "rounding (a unit is {rounding.unit} of the largest element, {rounding.size}), and up "
            "to {rounding.most} may be due to rounding",
            "pass an rtol and atol that {rounding.dtype} can meet, or compute in a more precise "
            "dtype",
            lambda facts: facts.rounding and facts.rounding.units <= facts.rounding.most,
        ),
        _case(
            "{because.place} replaces at grid point {because.place.point} what {because.replaced} "
            "wrote to {because.buffer} at {because.other.point}, which nothing had read",
            "if both should count, add to {because.buffer} in {because.place}, or run it only at "
            "the first step of each block of {because.output}",
            _because("replaced"),
        ),
        _case(
            "{because.buffer} is not reset where this block begins: it was last set by "
            "{because.other.point}, {because.other}, for another block of {because.output}, and "
            "{because.place} continues from it at {because.place.point}",
            "reset {because.buffer} at the first step of each block of {because.output}, unless it "
            "should carry values from block to block: @pl.when(pl.program_id(axis) == 0), with the "
            "axis along which the block stays the same",
            _because("not reset"),
        ),
        _case(
            "{because.place} stores the block at grid point {because.place.point}, and "
            "{because.other} updates {because.buffer} after that, at {because.other.point}: that "
            "is not in the result",
            "store at the last step of each block, after the last update",
            _because("stored early"),
        ),
        _case(
            "{because.buffer} holds what {because.other} wrote at grid point {because.other.point},"
            " for another block of {because.output}, and {because.place} reads it at "
            "{because.place.point}",
            "clear {because.buffer}, or mask that part of it, unless it should carry values from "
            "block to block",
            _because("left over"),
        ),
        _case(
            "the kernel produces these, or leaves them in memory, where the reference does not",
            'pallas_debug.check with "nan,inf,float_div" reports the line that produces one',
            lambda facts: facts.pattern.special in ("NaN", "infinite"),
        ),
        _case(),
    ]
}
