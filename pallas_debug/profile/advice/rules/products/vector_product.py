"""Advice: a loop computes a matrix product on the vector unit, one row or column at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.row_loop import indices_of, is_straight, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.schedule import ScheduledLoop

MIN_TRIPS = 8
"""Minimum iterations of a loop: fewer rows leave the MXU idle."""

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""

TILE = 128
"""Rows and columns of an MXU tile; tiles are larger on v6e and later."""

LOADING = 16
"""Cycles to load a tile into the MXU, 8 rows per cycle."""

PASSES = 6
"""Number of MXU passes of an f32 product with the highest precision."""

LATENCY = 300
"""Cycles until the first result of a product is in a register; compiled kernels take 150 to 250."""

_REDUCTION = re.compile(r"vector\.multi_reduction <add>, .*\[(?P<axis>[01])\] : ")


@dataclass(frozen=True, kw_only=True)
class _Product:
    """Matrix product that a loop computes.

    Attributes:
      multiply: the elementwise multiplication.
      sizes: rows of the left operand, size of the summed dimension, columns of the right operand.
      is_outer: whether each iteration adds the product of a column and a row, instead of computing
        a row of the result.
    """

    multiply: ProgramOperation
    sizes: tuple[int, int, int]
    is_outer: bool


def advise_vector_product(subject: AdviceSubject) -> Iterator[Advice]:
    return (advice for advice, _ in _found(subject))


def loops_of_products(subject: AdviceSubject) -> frozenset[int]:
    """Return the numbers of scheduled loops whose products the advice is about."""
    return frozenset(scheduled.number for _, scheduled in _found(subject))


def _found(subject: AdviceSubject) -> list[tuple[Advice, ScheduledLoop]]:
    program = subject.program
    if subject.is_memory_bound:
        return []
    found = []
    for loop in program.loops_of(MIN_TRIPS):
        product = _product(program, loop)
        if product is None:
            continue
        source = program.source(product.multiply)
        line = starting(subject.at(source), "vmul")
        scheduled = subject.own_loop_of(line)
        if scheduled is None:
            continue
        cycles = subject.cycles_of(scheduled)
        # The compiler or the program may have unrolled the loop.
        inside = [p for p in line if p.bundle in scheduled]
        rounds = _rounds(product, len(inside), loop.trips or 0)
        now, then = cycles * rounds, _on_mxu(product)
        share = subject.share(subject.inside(scheduled))
        if rounds < 2 or share * (1 - then / now) < MIN_GAIN:
            continue
        rows, summed, columns = product.sizes
        size = f"({rows}, {summed}) by ({summed}, {columns})"
        advice = KIND.advice(
            source=source,
            message=(
                f"the vector unit multiplies {size}, "
                + (
                    "as the sum of one product of a column and a row in each of "
                    if product.is_outer
                    else "one row in each of "
                )
                + f"{loop.trips} iterations, which take about {now:,.0f} cycles; the MXU would "
                f"need about {then:,}"
            ),
            remedy=(
                "multiply once on the MXU, before or instead of the loop: lax.dot_general, "
                + (
                    "contracted over the dimension that the loop iterates over"
                    if product.is_outer
                    else f"of all {rows} rows at once, contracted over the summed dimension"
                )
                + ", with preferred_element_type=jnp.float32, and with "
                "precision=lax.Precision.HIGHEST unless products of values rounded to bf16 are "
                "precise enough"
            ),
            evidence=(
                derived("iterations", loop.trips),
                counted("bundles of the loop", scheduled.size),
                derived("cycles of all iterations", round(now), unit="cycles"),
                derived("cycles on the MXU", then, f"in {PASSES} passes", "cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )
        found.append((advice, scheduled))
    return found


def _rounds(product: _Product, multiplied: int, trips: int) -> float:
    """Return the iterations of the scheduled loop, where each multiplies this many registers."""
    rows, summed, columns = product.sizes
    height, width = (rows, columns) if product.is_outer else (columns, summed)
    registers = math.ceil(height / 8) * math.ceil(width / TILE)
    return trips / max(round(multiplied / registers), 1)


def _on_mxu(product: _Product) -> int:
    rows, summed, columns = product.sizes
    tiles = math.ceil(summed / TILE) * math.ceil(columns / TILE)
    return PASSES * tiles * (LOADING + math.ceil(rows / 8)) + LATENCY


def _product(program: MosaicProgram, loop: ProgramLoop) -> _Product | None:
    """Return the product that a loop computes; None if it has none, or has effects or branches."""
    body = program.body(loop)
    if not is_straight(body):
        return None
    for operation in body:
        found = _of_rows(program, loop, operation) or _of_columns(program, loop, operation)
        if found is not None:
            return found
    return None


def _of_rows(
    program: MosaicProgram, loop: ProgramLoop, operation: ProgramOperation
) -> _Product | None:
    """Return a product of which each iteration computes a row: a matrix times a row, summed."""
    reduced = _REDUCTION.search(operation.text)
    multiply = program.producer(operation.operands[0], operation.line) if reduced else None
    if reduced is None or multiply is None or multiply.name != "arith.mulf":
        return None
    shape, axis = _shape(multiply), int(reduced["axis"])
    if shape is None or multiply.line not in loop:
        return None
    for row, matrix in (multiply.operands, multiply.operands[::-1]):
        narrow = _spread(program, row, multiply.line)
        if narrow != ((1, shape[1]) if axis == 1 else (shape[0], 1)):
            continue
        if _spread(program, matrix, multiply.line) is not None:
            continue
        moves, stays = _moves(program, loop, row, multiply), _moves(program, loop, matrix, multiply)
        if moves is True and stays is False:
            return _Product(
                multiply=multiply,
                sizes=(loop.trips or 0, shape[axis], shape[1 - axis]),
                is_outer=False,
            )
    return None


def _of_columns(
    program: MosaicProgram, loop: ProgramLoop, operation: ProgramOperation
) -> _Product | None:
    """Return a product to which each iteration adds the outer product of a column and a row."""
    if operation.name != "arith.addf" or "vector<" not in operation.text:
        return None
    for total, value in (operation.operands, operation.operands[::-1]):
        multiply = program.producer(value, operation.line)
        if multiply is None or multiply.name != "arith.mulf" or multiply.line not in loop:
            continue
        shape = _shape(multiply)
        if shape is None or not _is_total(program, loop, operation, total):
            continue
        spread = {_spread(program, o, multiply.line) for o in multiply.operands}
        if spread != {(shape[0], 1), (1, shape[1])}:
            continue
        if all(_moves(program, loop, o, multiply) is True for o in multiply.operands):
            return _Product(
                multiply=multiply, sizes=(shape[0], loop.trips or 0, shape[1]), is_outer=True
            )
    return None


def _is_total(program: MosaicProgram, loop: ProgramLoop, add: ProgramOperation, value: str) -> bool:
    """Return whether a value is a sum, carried or kept in a ref, that the loop only adds to.

    This excludes a sum that iterations read, such as the state of linear attention.
    """
    users = program.users(add)
    body = [operation for operation in program.operations if operation.line in loop]
    if value in loop.carried:
        readers = [operation for operation in body if value in operation.operands]
        return [user.name for user in users] == ["scf.yield"] and readers == [add]
    load = program.producer(value, add.line)
    if load is None or load.name not in LOADS or len(users) != 1 or users[0].name not in STORES:
        return False
    place, memory = indices_of(program, loop, load), memory_of(program, load)
    if place is None or any(step for step, _ in place) or memory_of(program, users[0]) != memory:
        return False
    accesses = [operation for operation in body if memory in operation.operands]
    return (
        indices_of(program, loop, users[0]) == place
        and accesses == [load, users[0]]
        and program.users(load) == (add,)
    )


def _spread(program: MosaicProgram, value: str, line: int) -> tuple[int, ...] | None:
    """Return the shape of the row or column that a value repeats; None for other values."""
    made = program.producer(value, line)
    if made is None or made.name != "vector.broadcast":
        return None
    shape = made.operand_shape
    return shape[0] if shape is not None and len(shape[0]) == 2 else None


def _moves(
    program: MosaicProgram, loop: ProgramLoop, value: str, user: ProgramOperation
) -> bool | None:
    """Return whether a value changes in each iteration; None if it depends on earlier ones."""
    sources = program.sources_of(value, user.line)
    if sources is None or value in loop.carried:
        return None
    written = {memory_of(program, o) for o in program.named(*STORES) if o.line in loop}
    inside = [source for source in sources if source.line in loop]
    for source in inside:
        if not set(loop.carried).isdisjoint(source.operands) or source.name.startswith("scf."):
            return None
        if source.name in LOADS and memory_of(program, source) in written:
            return None
    return any(loop.counter in source.operands for source in inside)


def _shape(operation: ProgramOperation) -> tuple[int, int] | None:
    shape = operation.shape
    return (shape[0][0], shape[0][1]) if shape is not None and len(shape[0]) == 2 else None


KIND = AdviceKind(
    name="vector-product",
    title="A matrix product on the vector unit",
    condition=(
        f"Each of at least {MIN_TRIPS} iterations of a loop multiplies a row by a matrix that "
        "stays the same, element by element, and sums the products, or adds the product of a "
        f"column and a row. The MXU, in the {PASSES} passes of the highest precision, would save "
        f"at least {MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Multiply once, with `lax.dot_general`.",
    rule=advise_vector_product,
)
