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


WhyUnwritten = Literal["condition", "stores", "rounded down", "left out"]
"""Why an output is not written: every store is conditional, the stores or copies leave a part out,
the grid has too few steps for the last, partial block, or no grid point visits a block."""

# Reads

_UNINITIALIZED = (
    "{operand} is read before it is written, and the value reaches an output{first:: %}"
)
_BEFORE = (
    "write it before this line, or at the first step of a grid axis: "
    "@pl.when(pl.program_id(axis) == 0)"
)
_PADDING = "padding of {operand} is read and reaches an output{first:: %}{copied:\ncopied from %}"
_SHARED = "{operand} and {output} share one array through input_output_aliases"
_KEEP = "give {operand} and {output} the same index map, or do not alias them"
_OVERWRITTEN = (
    "{part} is read at {reader}\nwhat it held was overwritten through {output} at {writer}"
)

# Outputs

_WRITE = "write all of {operand}, or alias an input to it with input_output_aliases"

_UNWRITTEN: Mapping[WhyUnwritten, tuple[str, str]] = {
    "condition": (
        "every store to {operand} is conditional, and its condition was false for this part",
        _WRITE,
    ),
    "stores": (
        "the stores and copies to {operand} do not reach it",
        _WRITE + "; or slice {operand} in the jitted function",
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
        "nothing writes {part}{count: (%)}"
        "{is_aliased:; it does not keep the input that shares it%}",
        cause,
        advice,
        None if is_last else lambda f: f.why == why and bool(f.is_aliased) == is_aliased,
    )


CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.MISPLACED_OPERAND: [
        Case(
            "{operand} is declared in HBM, but XLA puts it in {place}",
            "nothing constrains {operand} to HBM, and this libtpu then copies zeros (jax#39744)",
            "{remedy}",
        ),
    ],
    Fault.UNINITIALIZED_READ: [
        Case(
            "{undefined} of the {total} elements that are loaded from {operand} are undefined, and "
            "reach a result",
            "a load under a mask without `other` leaves the rest of its result undefined",
            "pass `other`, such as `other=0.0` for a sum or `other=-jnp.inf` for a maximum",
            has("undefined"),
        ),
        Case(
            _UNINITIALIZED,
            "grid dimension {parallel} is parallel: another core may have written it, at "
            "{written_at}",
            'write it {begin}, or make the dimension "arbitrary"',
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
            "the copy reaches past the end of the array, up to the end of its last tiles",
            "mask the elements past the end with jnp.where (0 times NaN is NaN), or pad the array",
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
            _OVERWRITTEN,
            _SHARED + ", and blocks are fetched one grid point ahead",
            _KEEP,
            has("is_under_way"),
        ),
        Case(_OVERWRITTEN, _SHARED, _KEEP),
    ],
    Fault.OUTPUT_NOT_WRITTEN: [
        Case(
            "nothing writes {missing:,} of {total:,} elements of a block that the pipeline copies "
            "to {operand}",
            "the body of the pipeline does not store to all of the block",
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
