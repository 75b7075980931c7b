"""Cases of faults of memory: uninitialised or undefined, padding, unwritten, or overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pallas_debug.findings.case import Case, has
from pallas_debug.findings.facts import Point, lines_text
from pallas_debug.findings.faults import Fault

# Facts


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


class UnwrittenPart(NamedTuple):
    """Part of an output that is never written, in one or several regions."""

    text: str
    is_several: bool = False

    def __str__(self) -> str:
        verbs = "are never written, and hold" if self.is_several else "is never written, and holds"
        return f"{self.text} {verbs}"


WhyUnwritten = Literal["condition", "stores", "rounded down", "left out"]
"""Why an output is not written: every store is conditional, the stores or copies leave a part out,
the grid has too few steps for the last, partial block, or no grid point visits a block."""

# Reads

_UNINITIALIZED = (
    "{operand}, {shape}, is read before it is written, and the value reaches an output{first:: %}"
)
_BEFORE = (
    "write all of it before this line at each grid point or, if its value carries over along a "
    "grid axis, at the first step of that axis: @pl.when(pl.program_id(axis) == 0)"
)
_PADDING = "padding of {operand}, {shape}, is read and reaches an output{first:: %}"
_SHARED = "{operand} and {output} share one array through input_output_aliases"
_KEEP = (
    "read a block no later than it is overwritten: give {operand} and {output} the same index map, "
    "or keep what is still needed in scratch, or do not alias them"
)

# Outputs

_WRITE = "write all of {operand}, or alias an input to it with input_output_aliases"

_UNWRITTEN: Mapping[WhyUnwritten, tuple[str, str]] = {
    "condition": (
        "every store to {operand} is conditional, and its condition was false where it would have "
        "written this part",
        _WRITE,
    ),
    "stores": (
        "the stores and copies to {operand} do not reach it",
        _WRITE + "; if only the rest is used, slice {operand} in the jitted function that calls "
        "the kernel",
    ),
    "rounded down": (
        "the grid has too few steps for the array: a size was rounded down",
        "use pl.cdiv(size, block) steps; the last block may reach past the end",
    ),
    "left out": (
        "no grid point visits it: the grid has too few steps, or the index map leaves blocks out",
        "visit every block, or alias an input to {operand} with input_output_aliases",
    ),
}


def _unwritten(why: WhyUnwritten, *, is_aliased: bool) -> Case:
    """Case of an output, or of one that shares the memory of an input."""
    cause, advice = _UNWRITTEN[why]
    if is_aliased:
        advice = "copy the input's block to {operand} wherever nothing else is stored"
    is_last = why == "left out" and not is_aliased
    return Case(
        "{part} whatever was in memory before{is_aliased:, not the input that shares it%}"
        "{count:: %}",
        cause,
        advice,
        None if is_last else lambda f: f.why == why and bool(f.is_aliased) == is_aliased,
    )


CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.UNINITIALIZED_READ: [
        Case(
            "{undefined} of the {total} elements that are loaded from {operand} are undefined, as "
            "the mask is false for them, and a result depends on them",
            "a load under a mask without `other` leaves the rest of its result undefined",
            "pass `other`, such as `other=0.0` for a sum or `other=-jnp.inf` for a maximum",
            has("undefined"),
        ),
        Case(
            _UNINITIALIZED,
            "grid dimension {parallel} is parallel, so two cores may share it (v4 and v5p have "
            "two), and each core has its own scratch: the data read here was written at grid point "
            "{written_at}",
            "write {operand} {begin}; if its value should carry over, make grid dimension "
            '{parallel} "arbitrary" in dimension_semantics',
            has("parallel"),
        ),
        Case(
            _UNINITIALIZED,
            "it is written in {writes}, but not all of it before this line",
            _BEFORE,
            has("writes"),
        ),
        Case(
            _UNINITIALIZED,
            "scratch buffers and outputs hold whatever was in memory before",
            _BEFORE,
        ),
    ],
    Fault.PADDING_READ: [
        Case(
            _PADDING,
            "a copy reaches past the end of {copied}, and includes the rest of the array's last "
            "tiles, whose contents are undefined",
            "mask the elements past the end with jnp.where, in each factor of a product (0 times "
            "NaN is NaN), or pad the array to whole tiles",
            has("copied"),
        ),
        Case(
            _PADDING,
            "a block reaches beyond the array",
            "mask the elements outside the array with jnp.where, or pad the array to whole blocks",
        ),
    ],
    Fault.OVERWRITTEN_READ: [
        Case(
            "{part} is fetched for {reader} while what {writer} wrote to {output} is copied back "
            "to the same memory",
            _SHARED + ", and a block is fetched one grid point ahead of its use",
            _KEEP,
            has("is_under_way"),
        ),
        Case(
            "{part} is read at {reader} after {writer} overwrote it through {output}",
            _SHARED,
            _KEEP,
        ),
    ],
    Fault.OUTPUT_NOT_WRITTEN: [
        Case(
            "a block that the pipeline copies to {operand}, {shape}, is not written: {missing:,} "
            "of its {total:,} elements hold whatever VMEM held before",
            "the body of the pipeline does not store to all of the block, or stores under a "
            "condition that is never true for this block",
            "store to all of a block of {operand} before the pipeline moves on to the next one",
            has("missing"),
        ),
        *(
            _unwritten(why, is_aliased=is_aliased)
            for is_aliased in (True, False)
            for why in _UNWRITTEN
        ),
    ],
}
