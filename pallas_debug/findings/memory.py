"""Cases of faults of memory: uninitialised or undefined, padding, unwritten, or overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pallas_debug.findings.case import Case, Test, has, is_
from pallas_debug.findings.facts import Point, lines_text, number, points_text
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


class FirstElement(NamedTuple):
    """First affected element, with the number of affected ones unless all are."""

    name: str
    affected: Count | None = None

    def __str__(self) -> str:
        return f"{self.affected}, starting with {self.name}" if self.affected else self.name


class Writes(NamedTuple):
    """Lines that write a buffer, and the first grid points at which they ran."""

    lines: Sequence[int]
    points: Sequence[Point]

    def __str__(self) -> str:
        return lines_text(self.lines)

    @property
    def at(self) -> str:
        return points_text(self.points)


class GridStep(NamedTuple):
    """A grid point, and the iterations of the loops around a line."""

    point: Point
    loop: Point = ()

    def __str__(self) -> str:
        point = f"grid point {self.point}" if self.point or not self.loop else ""
        loop = f"loop iteration {self.loop}" if self.loop else ""
        return ", ".join(filter(None, (point, loop)))


class OverwrittenElement(NamedTuple):
    """Values of an element before and after it was overwritten."""

    element: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.element} was {number(self.before)} and is now {number(self.after)}"

    @property
    def values(self) -> dict[str, str]:
        """Return the change as values of a witness."""
        return {self.element: number(self.after), f"{self.element} before": number(self.before)}


class UnwrittenPart(NamedTuple):
    """Part of an output that is never written, in one or several regions."""

    text: str
    is_several: bool = False

    def __str__(self) -> str:
        verbs = "are never written, and hold" if self.is_several else "is never written, and holds"
        return f"{self.text} {verbs}"


WhyUnwritten = Literal[
    "condition", "some conditions", "stores", "copies", "no store", "rounded down", "too few steps",
    "no points", "left out",
]  # fmt: skip
"""Why an output is not written: every store is conditional, the stores or copies leave a part out,
there is no store, the grid has too few steps for the last, partial block or for more, it has no
points, or an index map leaves blocks out."""

# Reads


def _uninitialized(cause: str, advice: str, when: Test | None = None) -> Case:
    message = (
        "{operand}, {shape}, is read before it is written, and the value reaches an output"
        "{first:: %}"
    )
    return Case(message, cause, advice, when)


_OTHER_CORE = (
    "grid dimension {parallel} is parallel, so two cores may share it (v4 and v5p have two), and "
    "each core has its own scratch: the data read here was written at grid point {written_at}"
)
_ARBITRARY = (
    'if its value should carry over, make grid dimension {parallel} "arbitrary" in '
    "dimension_semantics"
)
_ALL = (
    "write all of it before this line"
    "{is_array:, or alias an input to it with input_output_aliases%}"
)
_EACH_POINT = (
    "write it before this line at each grid point or, if its value carries over along a grid axis, "
    "at the first step of that axis: @pl.when(pl.program_id(axis) == 0)"
)
_CONDITIONAL = "each store to it before this line is conditional, and none had written it yet"
_GARBAGE = "scratch buffers and outputs hold whatever was in memory before"

_UNINITIALIZED = [
    Case(
        "{undefined} of the {total} elements that are loaded from {operand} are undefined, as the "
        "mask is false for them, and a result depends on them",
        "a load under a mask without `other` leaves the rest of its result undefined",
        "pass `other`, such as `other=0.0` for a sum or `other=-jnp.inf` for a maximum",
        has("undefined"),
    ),
    _uninitialized(
        "{operand} shares memory with {output}: a block of {output} was written back before the "
        "kernel had stored to all of it",
        "let the index map of {output} return a block only where the kernel stores to all of it, "
        "or copy the block of {operand} to {output} at the other grid points",
        has("output"),
    ),
    _uninitialized(
        _OTHER_CORE,
        "write {operand} where each core begins: {begin}; " + _ARBITRARY,
        has("parallel", "begin"),
    ),
    _uninitialized(
        _OTHER_CORE, "write {operand} at each grid point; " + _ARBITRARY, has("parallel")
    ),
    _uninitialized(
        "it is written at this grid point in {writes}, but not all of it before this line",
        _ALL,
        lambda f: f.writes and f.grid_point in f.writes.points,
    ),
    _uninitialized("it is written only at {writes.at}, in {writes}", _ALL, has("writes")),
    _uninitialized(_CONDITIONAL, _EACH_POINT, has("is_conditional", "stays")),
    _uninitialized(_CONDITIONAL, _ALL, has("is_conditional")),
    _uninitialized(_GARBAGE, _EACH_POINT, has("stays")),
    _uninitialized(_GARBAGE, _ALL),
]


def _padding(cause: str, advice: str, when: Test | None = None) -> Case:
    message = "padding of {operand}, {shape}, is read and reaches an output{first:: %}"
    return Case(message, cause, advice, when)


_MASKED = "mask the elements {} with jnp.where, or pad the array to whole blocks"

_PADDING = [
    _padding(
        "a copy reaches past the end of {copied}, and includes the rest of the array's last tiles, "
        "whose contents are undefined",
        "mask the elements past the end with jnp.where, in each factor of a product (0 times NaN "
        "is NaN), or pad the array to whole tiles",
        has("copied"),
    ),
    _padding(
        "a block begins before the array", _MASKED.format("before the start"), is_("side", "start")
    ),
    _padding(
        "blocks begin before the array or reach past its end",
        _MASKED.format("outside the array"),
        is_("side", "either"),
    ),
    _padding("the last block reaches past the end of the array", _MASKED.format("past the end")),
]

_SHARED = "{operand} and {output} share one array through input_output_aliases"
_SAME_MAP = (
    "give {operand} and {output} the same index map, so that the grid point that overwrites a "
    "block also reads it, or do not alias them"
)
_OVERWRITTEN = "{part} is read at {reader} after {writer} overwrote it through {output}{change:: %}"

# Outputs

_ALIAS = "alias an input to {operand} with input_output_aliases"
_WRITE = "write all of {operand}, or alias an input to it with input_output_aliases"
_REST = "; if only the rest is used, slice {operand} in the jitted function that calls the kernel"

_UNWRITTEN: Mapping[WhyUnwritten, tuple[str, str]] = {
    "condition": (
        "every store to {operand} is conditional, and its condition was false where it would have "
        "written this part",
        _WRITE,
    ),
    "some conditions": (
        "the stores to {operand} that ran did not reach it; the one in this line is conditional",
        _WRITE,
    ),
    "stores": ("the stores to {operand} do not reach it", _WRITE),
    "copies": ("the copies to {operand} do not reach it", _WRITE),
    "no store": ("there is no store to {operand}", _WRITE),
    "rounded down": (
        "the grid has too few steps for the array: a size was rounded down",
        "use pl.cdiv(size, block) steps; the last block may reach past the end",
    ),
    "too few steps": (
        "the grid has too few steps for the array: whole blocks are left out",
        "add the missing steps, or shrink {operand} in out_shape to what the grid writes",
    ),
    "no points": (
        "the grid has no points, so the kernel's body did not run",
        "use pl.cdiv(size, block) steps if a size was rounded down to 0; otherwise skip the call, "
        "or " + _ALIAS,
    ),
}


_VISITS = "{visits:; its first element is in the block of %}"


def _unwritten(cause: str, advice: str, when: Test | None = None) -> Case:
    message = "{part} whatever was in memory before{count:: %}"
    return Case(message, cause + _VISITS, advice, when)


def _because(why: WhyUnwritten, *names: str) -> Test:
    return lambda facts: facts.why == why and all(facts[name] for name in names)


CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.UNINITIALIZED_READ: _UNINITIALIZED,
    Fault.PADDING_READ: _PADDING,
    Fault.OVERWRITTEN_READ: [
        Case(
            "{part} is fetched for {reader} while what {writer} wrote to {output} is copied back "
            "to the same memory",
            _SHARED + ", and a block is fetched one grid point ahead of its use",
            _SAME_MAP,
            has("is_under_way"),
        ),
        Case(
            _OVERWRITTEN,
            _SHARED,
            "keep the data that is still needed in scratch, or do not alias {operand} and {output}",
            has("by_copy"),
        ),
        Case(_OVERWRITTEN, _SHARED, _SAME_MAP),
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
            Case(
                "{part} whatever VMEM held before, not the input that shares memory with {operand}"
                "{count:: %}",
                cause + _VISITS,
                "copy the input's block to {operand} wherever nothing else is stored",
                _because(why, "is_aliased"),
            )
            for why, (cause, _) in _UNWRITTEN.items()
        ),
        *(
            _unwritten(_UNWRITTEN[why][0], _WRITE + _REST, _because(why, "count"))
            for why in ("stores", "copies")
        ),
        *(_unwritten(cause, advice, _because(why)) for why, (cause, advice) in _UNWRITTEN.items()),
        _unwritten("the index map leaves blocks out", "visit every block, or " + _ALIAS),
    ],
}
