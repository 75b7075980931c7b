"""Advice: a loop multiplies a few rows at a time by a matrix that stays the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.invariant import EFFECTS
from pallas_debug.profile.advice.subject import AdviceSubject, starting

MIN_SHARE = 0.15
"""Minimum share of the executed bundles that belong to the loop."""

MIN_LOADS = 2
"""Minimum number of instructions that load the matrix per instruction that multiplies by it."""

MAX_ROWS = 32
"""Maximum rows of a thin product. Compiled kernels gain with 8 rows; with 64 it is not known."""

MIN_OF_RECURRENT = 8
"""Minimum size of the matrix, as a multiple of the matrices in the loop's recurrence.

The iterations wait for the recurrence anyway: with twice its size, moving the product before the
loop took 1 % longer on v5e and v6e; with 4 times, it saved 6 and 8 %; with 8 times, 11 and 14 %.
The number of load instructions is not comparable, as each loads a larger tile on v6e.
"""

_MULTIPLIES = "vmatmul"
_LOADS_MATRIX = "vmatpush"
_UNTRANSPOSED = re.compile(r"dot_dimension_numbers<\[1\], \[[01]\], \[0\], \[[01]\], ")


def advise_thin_product(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for source, loop, operations in _products(program):
        trips = loop.trips
        shapes = [_shapes(operation) for operation in operations]
        shape = shapes[0]
        # Instructions are known by line, not by product, so all products of a line must be thin.
        if trips is None or shape is None or any(other != shape for other in shapes):
            continue
        if shape[0][0] > MAX_ROWS or not all(_can_be_one(program, o, loop) for o in operations):
            continue
        if any(program.is_conditional(operation.line) for operation in operations):
            continue  # some iterations skip the product
        products = subject.at(source)
        scheduled = subject.own_loop_of(starting(products, _LOADS_MATRIX))
        if scheduled is None:
            continue
        products = [p for p in products if p.bundle in scheduled]
        loads = starting(products, _LOADS_MATRIX)
        multiplied = starting(products, _MULTIPLIES)
        share = subject.share(subject.inside(scheduled))
        if len(loads) < MIN_LOADS * len(multiplied) or share < MIN_SHARE:
            continue
        if _elements(operations) < MIN_OF_RECURRENT * _elements(_recurrent(program, loop)):
            continue
        (rows, _), matrix = shape
        size = ", ".join(map(str, matrix[0]))
        same = (
            f"the same {matrix[1]}[{size}]"
            if len(operations) == 1
            else f"the same {len(operations)} matrices of {matrix[1]}[{size}]"
        )
        yield KIND.advice(
            source=source,
            message=(
                f"each of the {trips} iterations loads {same} into the MXU, in {len(loads)} "
                f"instructions, to multiply {rows} {'row' if rows == 1 else 'rows'} by "
                f"{'it' if len(operations) == 1 else 'them'} in {len(multiplied)}"
            ),
            remedy=(
                f"multiply the rows of all {trips} iterations at once, before the loop"
                + ("" if loop.carried else ", or at least 128 rows in each")
            ),
            evidence=(
                derived("iterations", trips),
                derived("rows in each", rows),
                counted("instructions that load the matrix in each", len(loads)),
                counted("instructions that multiply in each", len(multiplied)),
                derived_share("share of the executed bundles", share),
            ),
        )


def _products(
    program: MosaicProgram,
) -> Iterator[tuple[SourceLine, ProgramLoop, list[ProgramOperation]]]:
    """Yield the products of each line with their innermost loop, if it has several iterations."""
    found: dict[tuple[SourceLine, int], tuple[ProgramLoop, list[ProgramOperation]]] = {}
    for operation in program.named("tpu.matmul"):
        loops, source = program.loops_around(operation.line), program.source(operation)
        if source is not None and loops and loops[0].trips is not None and loops[0].trips > 1:
            found.setdefault((source, loops[0].line), (loops[0], []))[1].append(operation)
    for (source, _), (loop, operations) in found.items():
        yield source, loop, operations


def _elements(operations: Iterable[ProgramOperation]) -> int:
    """Count the elements of the right operands."""
    return sum(
        math.prod(shape[0])
        for operation in operations
        for text in re.findall(r"vector<[^>]*>", operation.text)[1:2]
        if (shape := shape_of(text)) is not None
    )


def _recurrent(program: MosaicProgram, loop: ProgramLoop) -> list[ProgramOperation]:
    """Return the loop's products of values computed in an earlier iteration.

    The iterations wait for these, while other products run.
    """
    found = []
    for operation in program.named("tpu.matmul"):
        if operation.line not in loop:
            continue
        made = [
            s for o in operation.operands[:2] for s in _sources(program, operation, o, loop) or ()
        ]
        read = {*operation.operands[:2], *(o for source in made for o in source.operands)}
        if not read.isdisjoint(loop.carried):
            found.append(operation)
    return found


def _shapes(
    operation: ProgramOperation,
) -> tuple[tuple[int, str], tuple[tuple[int, ...], str]] | None:
    """Return rows and type of the left operand, and shape and type of the right one."""
    if not _UNTRANSPOSED.search(operation.text):
        return None
    types = re.findall(r"vector<[^>]*>", operation.text)
    if len(types) != 4:
        return None
    left, right = shape_of(types[0]), shape_of(types[1])
    if left is None or right is None or len(left[0]) != 2 or len(right[0]) != 2:
        return None
    return (left[0][0], left[1]), right


def _can_be_one(program: MosaicProgram, operation: ProgramOperation, loop: ProgramLoop) -> bool:
    """Return whether the right operand is loop-invariant and the left one of this iteration."""
    if len(operation.operands) < 2:
        return False
    body = program.body(loop)
    if any(o.name in EFFECTS for o in body):
        return False
    written = {v for o in body if o.name in STORES for v in o.operands}
    left, right = operation.operands[:2]
    fixed = _sources(program, operation, right, loop)
    moving = _sources(program, operation, left, loop)
    if fixed is None or moving is None:
        return False
    for source in (*fixed, *moving):
        if not set(loop.carried).isdisjoint(source.operands) or source.name.startswith("scf."):
            return False
        if source.name in LOADS and (
            source.operands[0] not in program.arguments or source.operands[0] in written
        ):
            return False
    if any(value in loop.carried for value in (left, right)):
        return False
    return not any(loop.counter in source.operands for source in fixed) and any(
        loop.counter in source.operands for source in moving
    )


def _sources(
    program: MosaicProgram, operation: ProgramOperation, value: str, loop: ProgramLoop
) -> list[ProgramOperation] | None:
    """Return the loop's operations on which a value depends; None if there are too many."""
    found = program.sources_of(value, operation.line)
    return None if found is None else [source for source in found if source.line in loop]


KIND = AdviceKind(
    name="thin-product",
    title="A product of a few rows in every iteration",
    condition=(
        f"A loop multiplies different rows, at most {MAX_ROWS} per iteration, by a matrix that "
        f"stays the same, independently of other iterations, and at least {MIN_LOADS} "
        "instructions load the matrix into the MXU for each that multiplies by it; the matrix is "
        f"at least {MIN_OF_RECURRENT} times as large as any by which results of the previous "
        "iteration are multiplied."
    ),
    remedy="Multiply all rows at once, or at least 128 in each iteration.",
    rule=advise_thin_product,
)
