"""Advice: a loop adds rows, or numbers, one by one to those that a table names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.invariant import REGISTER
from pallas_debug.profile.advice.rules.products.vector_product import LATENCY, PASSES
from pallas_debug.profile.advice.rules.row_loop import (
    MIN_TRIPS,
    index_values,
    is_straight,
    memory_of,
    rows_at_once,
    vectors_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.peaks import peaks_of
from pallas_debug.profile.units import MXU

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the product must save."""

ONE_HOT = 2
"""Cycles to compute a register of the one-hot matrix beside the product. Compiled kernels of 512 to
4,096 rows and 8 to 1,024 sums took 0.7 to 6, more where the product is short."""

COMPARISON = 3
"""Cycles to compare a register of places with those of a table, and to count or add what is equal.
Compiled kernels of 512 places in a table and 256 sums take 2.9."""

REDUCING = 100
"""Cycles until the sums over the lanes are in registers."""

LARGE_UNITS = 2
"""Number of matrix units of chips whose units multiply by 256 × 256 values; others have more units,
which multiply by 128 × 128."""


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Sums that a loop computes.

    Attributes:
      stores: the stores of an iteration, one for each row that it adds.
      memory: the memory that holds the sums.
      sizes: number of sums, of rows that are added, and of columns.
    """

    stores: list[ProgramOperation]
    memory: str
    sizes: tuple[int, int, int]


def advise_segment_sum(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for loop in program.loops_of(MIN_TRIPS):
        body = program.body(loop)
        yield from _numbers_advised(subject, loop, body)
        sums = _sums(program, loop, body)
        then = _on_mxu(subject, sums) if sums is not None else None
        if sums is None or then is None:
            continue
        source = program.source(sums.stores[0])
        stored = starting(subject.at(source), "vst")
        scheduled = subject.own_loop_of(stored)
        if scheduled is None:
            continue
        inside = subject.inside(scheduled)
        at_once = max(round(rows_at_once(body, inside)), 1)
        cycles = subject.cycles_of(scheduled)
        now, share = cycles * (loop.trips or 0) / at_once, subject.share(inside)
        if share * (1 - then / now) < MIN_GAIN:
            continue
        segments, rows, columns = sums.sizes
        operand = subject.operand(sums.memory)
        name = operand.name if operand is not None else "the result"
        yield KIND.advice(
            source=source,
            operand=operand.name if operand is not None else None,
            message=(
                f"{rows:,} rows of {columns:,} columns are added one by one to the "
                f"{segments:,} rows of {name}, each to one that a table names, which takes "
                f"about {now:,.0f} cycles; each addition waits for the load of a row that the "
                f"one before may have stored, and the MXU would need about {then:,.0f}"
            ),
            remedy=(
                f"multiply once by a one-hot matrix, with the table as a row of shape (1, "
                f"{rows}): jnp.dot((lax.broadcasted_iota(jnp.int32, ({segments}, {rows}), 0) "
                "== table).astype(jnp.float32), rows, precision=lax.Precision.HIGHEST); all "
                "rows must be finite, as 0 times an infinity is a NaN"
            ),
            evidence=(
                derived("rows that are added", rows),
                counted("bundles of the loop", scheduled.size),
                derived("cycles of all iterations", round(now), unit="cycles"),
                derived("cycles on the MXU", round(then), f"in {PASSES} passes", "cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )


def _numbers_advised(
    subject: AdviceSubject, loop: ProgramLoop, body: list[ProgramOperation]
) -> Iterator[Advice]:
    """Advise on numbers in SMEM, such as those of a histogram."""
    sums = _numbers(subject, loop, body)
    if sums is None:
        return
    source = subject.program.source(sums.stores[0])
    stored = starting(subject.at(source), "sst")
    scheduled = subject.loop_of(stored)
    if scheduled is None or subject.is_of_grid(scheduled):
        return
    inside = subject.inside(scheduled)
    stores = starting(inside, "sst")
    at_once = max(round(len(stores) / len(sums.stores)), 1)
    segments, numbers, _ = sums.sizes
    now = subject.cycles_of(scheduled) * (loop.trips or 0) / at_once
    then = COMPARISON * math.ceil(segments / 8) * math.ceil(numbers / 128) + REDUCING
    share = subject.share(inside)
    operand = subject.operand(sums.memory)
    if share * (1 - then / now) < MIN_GAIN or operand is None or operand.kind != "output":
        return
    places = f"lax.broadcasted_iota(jnp.int32, ({segments}, {numbers}), 0) == table"
    yield KIND.advice(
        source=source,
        operand=operand.name,
        message=(
            f"{numbers:,} numbers are added one by one to the {segments:,} numbers of "
            f"{operand.name} in SMEM, each to one that a table names, which takes about {now:,.0f} "
            "cycles; each addition waits for the load of a number that the one before may have "
            f"stored, and whole vectors would need about {then:,.0f}"
        ),
        remedy=(
            f"put the table, as a row of shape (1, {numbers}), and {operand.name} in VMEM, and "
            f"compare each place with all of the table: jnp.sum(jnp.where({places}, numbers, 0), "
            "axis=1, keepdims=True), where numbers is 1 for a histogram"
        ),
        evidence=(
            derived("numbers that are added", numbers),
            counted("bundles of the loop", scheduled.size),
            derived("cycles of all iterations", round(now), unit="cycles"),
            derived("cycles with vectors", round(then), unit="cycles"),
            derived_share("share of the executed bundles", share),
        ),
    )


def _on_mxu(subject: AdviceSubject, sums: _Sums) -> float | None:
    """Return the cycles of a product with a one-hot matrix; None for an unknown chip."""
    peaks, table = peaks_of(subject.schedule.chip), subject.schedule.table
    if peaks is None or table is None or MXU not in table.names:
        return None
    tile = 256 if table.capacities[MXU] <= LARGE_UNITS else 128
    segments, rows, columns = sums.sizes
    padded = segments * math.ceil(rows / tile) * math.ceil(columns / tile) * tile * tile
    per_cycle = peaks.flops["bf16"] / 2 / peaks.clock
    return PASSES * padded / per_cycle + ONE_HOT * segments * rows / REGISTER + LATENCY


def _sums(program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]) -> _Sums | None:
    """Return the sums of a loop that only adds rows to rows of one memory, at places of a table."""
    if loop.carried or not is_straight(body):
        return None
    stores = [o for o in body if o.name in STORES]
    memories = {memory_of(program, store) for store in stores}
    if len(memories) != 1 or not all(_adds(program, loop, store) for store in stores):
        return None
    memory = memories.pop()
    assert memory is not None
    shape = _shape_of(program, memory)
    row = vectors_of(stores[0])[-1:]
    if shape is None or len(shape) != 2 or not row or row[0] != (1, shape[1]):
        return None
    return _Sums(
        stores=stores,
        memory=memory,
        sizes=(shape[0], len(stores) * (loop.trips or 0), shape[1]),
    )


def _numbers(
    subject: AdviceSubject, loop: ProgramLoop, body: list[ProgramOperation]
) -> _Sums | None:
    """Return the sums of a loop that only adds numbers to those of an array in SMEM."""
    program = subject.program
    if loop.carried or not is_straight(body):
        return None
    stores = [o for o in body if o.name in STORES]
    memories = {memory_of(program, store) for store in stores}
    if len(memories) != 1 or any(store.name != "memref.store" for store in stores):
        return None
    memory = memories.pop()
    shape = _shape_of(program, memory) if memory is not None else None
    if memory is None or not shape or any(size != 1 for size in shape[:-1]):
        return None
    if not all(_adds(program, loop, store, named=-1) for store in stores):
        return None
    for load in program.named("memref.load"):
        is_used = memory_of(program, load) == memory and program.users(load)
        if is_used and load.line not in loop:
            return None  # the scalar unit reads the sums
    return _Sums(
        stores=stores, memory=memory, sizes=(shape[-1], len(stores) * (loop.trips or 0), 1)
    )


def _adds(
    program: MosaicProgram, loop: ProgramLoop, store: ProgramOperation, *, named: int = 0
) -> bool:
    """Return whether a store adds to the row or number that is at its place, which a table names.

    Args:
      named: number of the index that the table names.
    """
    memory, places = memory_of(program, store), index_values(store)
    kind = store.shape
    adding = {"f32": "arith.addf"} if not named else {"f32": "arith.addf", "i32": "arith.addi"}
    if memory is None or not places or kind is None or kind[1] not in adding:
        return False
    if not named and len(places) != 2:
        return False
    made = program.sources_of(places[named], store.line) or ()
    if not any(source.name in LOADS and source.line in loop for source in made):
        return False
    if any(source.name in LOADS and memory_of(program, source) == memory for source in made):
        return False
    values = [o for o in store.operands if o not in (memory, *places)]
    add = program.producer(values[0], store.line) if values else None
    if add is None or add.name != adding[kind[1]] or add.line not in loop:
        return False
    at = [program.identity(place, store.line) for place in places]
    for total, value in (add.operands, add.operands[::-1]):
        load = program.producer(total, add.line)
        if load is None or load.name not in LOADS or memory_of(program, load) != memory:
            continue
        sources = program.sources_of(value, add.line)
        if sources is None or any(
            o.name in LOADS and memory_of(program, o) == memory for o in sources
        ):
            continue
        if [program.identity(place, load.line) for place in index_values(load)] == at:
            return True
    return False


def _shape_of(program: MosaicProgram, memory: str) -> tuple[int, ...] | None:
    """Return the shape of a memory that is a parameter of the kernel; None for others."""
    head = program.module.lines[program.span[0]]
    found = shape_of(head.partition(f"{memory}: ")[2].partition(">")[0] + ">")
    return found[0] if memory in program.arguments and found is not None else None


KIND = AdviceKind(
    name="segment-sum",
    title="Rows or numbers added one by one to those that a table names",
    condition=(
        f"Each of at least {MIN_TRIPS} iterations of a loop adds rows in f32 to rows whose places "
        f"it reads from a table. A product with a one-hot matrix, in the {PASSES} passes of the "
        f"highest precision, would save at least {MIN_GAIN:.0%} of the executed bundles. Or it "
        "adds numbers to those of an output in SMEM, as in a histogram, and comparing all places "
        "with all of the table would save as much."
    ),
    remedy="Multiply all rows at once by a one-hot matrix; compare and sum whole vectors.",
    rule=advise_segment_sum,
)
