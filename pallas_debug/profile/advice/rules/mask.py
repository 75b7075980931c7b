"""Advice: a loop masks every iteration, although the mask is true in most of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.program import (
    PASSED_ON,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected, starting

MIN_SHARE = 0.1
"""Minimum share of the loop's vector instructions that compute and apply the mask."""

MAX_TRIPS = 512
"""Maximum iterations for which the mask is evaluated."""

MAX_DEPTH = 40
"""Maximum depth of the expression of a mask."""

_COMPARE = re.compile(r"arith\.cmpi (?P<how>\w+),")
_MASKED = re.compile(r" masked (?P<mask>%[\w$.-]+)")
_IOTA = re.compile(
    r"dimensions = array<i32: (?P<axis>\d{1,2})>.*: vector<(?P<shape>(?:\d{1,9}x){0,7}\d{1,9})x"
)
_SAME = PASSED_ON - {"arith.trunci", "vector.extract"}

Range = tuple[int, int]


def advise_mask(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    found = {}
    for operation in program.operations:
        mask = _mask_of(operation)
        loops = program.loops_around(operation.line)
        if mask is None or not loops or not loops[0].trips or loops[0].trips < 2:
            continue
        loop = loops[0]
        trips = min(loop.trips or 0, MAX_TRIPS)
        if not program.depends_on(mask, operation.line, loop.counter):
            continue  # hoisted out of the loop, where it costs nothing
        whole = iterations_without_mask(program, loop, mask, operation.line)
        if 2 * whole < trips:
            continue
        source = program.source(operation)
        computing = program.sources_of(mask, operation.line) or ()
        places = {
            s.place
            for o in computing
            if o.line in loop and "vector<" in o.text and (s := program.source(o)) is not None
        }
        scheduled = subject.loop_of(subject.at(source))
        if scheduled is None or source is None:
            continue
        inside = subject.inside(scheduled)
        vector = selected(inside, is_vector_instruction)
        compares = [p for p in inside if p.source and p.source.place in places]
        compares = starting(compares, "vcmp", "vadd.s32", "vmand")
        applied = starting([p for p in inside if p.source == source], "vsel", "vst.msk")
        if not compares or len(compares) + len(applied) < MIN_SHARE * len(vector):
            continue
        found[source] = KIND.advice(
            source=source,
            message=(
                f"the mask is true everywhere in {whole} of {trips} iterations, but each computes "
                f"and applies it: {len(compares) + len(applied)} of the loop's {len(vector)} "
                "vector instructions"
            ),
            remedy=(
                "split the loop: omit the mask in the iterations in which it is true everywhere, "
                f"and apply it in the {_times(trips - whole)} outside that loop"
                if whole < trips
                else "remove the mask: it is true in all iterations"
            ),
            evidence=(
                derived("iterations in which the mask is true everywhere", whole),
                derived("iterations", trips),
                counted("instructions that compute the mask in each", len(compares)),
                counted("instructions that apply it in each", len(applied)),
                counted("vector instructions of the loop", len(vector)),
                derived_share("share of the executed bundles", subject.share(inside)),
            ),
        )
    yield from found.values()


def iterations_without_mask(program: MosaicProgram, loop: ProgramLoop, mask: str, line: int) -> int:
    """Number of iterations of a loop in which a mask is known to be true everywhere."""
    if loop.start is None or loop.step is None:
        return 0
    counts = (loop.start + n * loop.step for n in range(min(loop.trips or 0, MAX_TRIPS)))
    return sum(MaskValues(program, {loop.counter: n}).is_everywhere(mask, line) for n in counts)


def _times(count: int) -> str:
    return "last one" if count == 1 else f"{count} others"


def _mask_of(operation: ProgramOperation) -> str | None:
    """Return the mask of a masked store or of a selection between vectors."""
    if operation.name == "arith.select" and "xi1>" in operation.text:
        return operation.operands[0] if operation.operands else None
    masked = _MASKED.search(operation.text)
    return masked["mask"] if masked else None


@dataclass(frozen=True)
class MaskValues:
    """Evaluator of masks, by interval arithmetic on the integers that they compare.

    Attributes:
      known: known values, such as loop counters and grid indices.
    """

    program: MosaicProgram
    known: Mapping[str, int]

    def is_everywhere(self, value: str, line: int, *, is_true: bool = True, depth: int = 0) -> bool:
        """Return whether a mask is known to have the same value everywhere.

        Args:
          is_true: the value to test for.
        """
        found = self.program.producer(value, line)
        if found is None or depth > MAX_DEPTH:
            return False
        if found.name in _SAME and found.operands:
            return self.is_everywhere(
                found.operands[0], found.line, is_true=is_true, depth=depth + 1
            )
        if found.name in ("arith.andi", "arith.ori"):
            parts = (
                self.is_everywhere(o, found.line, is_true=is_true, depth=depth + 1)
                for o in found.operands
            )
            return all(parts) if is_true == (found.name == "arith.andi") else any(parts)
        how = _COMPARE.search(found.text)
        if how is None or len(found.operands) != 2:
            return False
        a, b = (self.range(o, found.line, depth + 1) for o in found.operands)
        if a is None or b is None:
            return False
        name = how["how"]
        if name.startswith("u"):
            if a[0] < 0 or b[0] < 0:
                return False
            name = f"s{name[1:]}"
        return _holds(name if is_true else _OPPOSITES.get(name, ""), a, b)

    def range(self, value: str, line: int, depth: int = 0) -> Range | None:
        """Return the smallest and largest element of an integer value; None if unknown."""
        if value in self.known:
            return self.known[value], self.known[value]
        found = self.program.producer(value, line)
        if found is None or depth > MAX_DEPTH:
            return None
        constant = self.program.constant(value, line)
        if constant is not None:
            return constant, constant
        if found.name in _SAME and found.operands:
            return self.range(found.operands[0], found.line, depth + 1)
        if found.name == "tpu.iota":
            iota = _IOTA.search(found.text)
            if iota is None:
                return None
            sizes, axis = [int(n) for n in iota["shape"].split("x")], int(iota["axis"])
            return (0, sizes[axis] - 1) if axis < len(sizes) else None
        if len(found.operands) != 2:
            return None
        a, b = (self.range(o, found.line, depth + 1) for o in found.operands)
        if a is None or b is None:
            return None
        match found.name:
            case "arith.addi":
                return a[0] + b[0], a[1] + b[1]
            case "arith.subi":
                return a[0] - b[1], a[1] - b[0]
            case "arith.muli":
                products = [x * y for x in a for y in b]
                return min(products), max(products)
        return None


_OPPOSITES = {"slt": "sge", "sge": "slt", "sle": "sgt", "sgt": "sle", "ne": "eq"}


def _holds(name: str, a: Range, b: Range) -> bool:
    """Return whether a comparison is true for all numbers in two ranges."""
    match name:
        case "slt":
            return a[1] < b[0]
        case "sle":
            return a[1] <= b[0]
        case "sgt":
            return a[0] > b[1]
        case "sge":
            return a[0] >= b[1]
        case "ne":
            return a[1] < b[0] or b[1] < a[0]
    return False


KIND = AdviceKind(
    name="mask",
    title="A mask that is true in most iterations",
    condition=(
        "A loop computes a mask from its counter and applies it in every iteration; it is true "
        "everywhere in at least half of them, and takes at least "
        f"{MIN_SHARE:.0%} of the loop's vector instructions."
    ),
    remedy="Run the loop without the mask, and apply it only in the iterations that need it.",
    rule=advise_mask,
)
