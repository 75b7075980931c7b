"""Advice: values are reduced or rotated along the lanes so often that rows would be cheaper."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    applies,
    derived,
    derived_share,
)
from pallas_debug.profile.advice.pipelines import FILLED, idle_bundles
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.copying.narrow_block import advise_narrow_block
from pallas_debug.profile.advice.rules.half_lanes import advise_half_lanes
from pallas_debug.profile.advice.rules.products.broadcast_product import advise_broadcast_product
from pallas_debug.profile.advice.rules.products.vector_product import advise_vector_product
from pallas_debug.profile.advice.rules.reducing.lane_reduction import advise_lane_reduction
from pallas_debug.profile.advice.rules.reducing.narrow_slices import advise_narrow_slices
from pallas_debug.profile.advice.rules.reducing.narrow_values import advise_narrow_values
from pallas_debug.profile.advice.rules.reducing.single_rolls import advise_single_rolls
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import LANES, SUBLANES, registers_for

MIN_USED = 0.25
"""Minimum share of the cross-lane units' slots that are used."""

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that is saved, after the cycles of transposing."""

MIN_REGISTERS = 16
"""Minimum registers of a matrix that is reduced or rotated. A step with fewer waits for results one
after another, along rows as well."""

_SLOTS = 4
"""Instructions of the vector unit in a bundle."""

_ROTATION = 2
"""Instructions for each register that is rotated by rows: a rotation, and a selection."""

_WITHIN = 6
"""Instructions that combine the rows of a register: three rotations, each with an operation."""

_FUNCTION = 10
"""Instructions for each register of a division, an exponential or another function."""

_LATENCY = 15
"""Cycles that a reduction over rows waits for its own results. Compiled kernels of 128 and 256 rows
that reduce 17 to 33 times, one after another, wait 9 to 18 cycles for each."""

_TWICE = ("minsi", "maxsi", "minui", "maxui")
"""Integer operations that are a comparison and a selection."""

_SHAPED = re.compile(r"vector<(?P<sizes>(?:\d{1,9}x)*)(?P<kind>[a-z]+\d{1,2})\b")
_REDUCED = re.compile(r"<(?P<how>\w+)>.* \[(?P<axes>\d(?:, \d)*)\] :")
_ROTATED = re.compile(r"\bdim (?P<dim>\d)\b")
_FREE = (*PASSED_ON, "arith.constant", "tpu.iota", "vector.broadcast")
_WIDE = ("f32", "i32", "i1")


@dataclass(frozen=True, kw_only=True)
class _Turned:
    """Work of a step if its arrays were transposed.

    Attributes:
      moves: registers that are now reduced or rotated along the lanes, by line.
      reductions: number of reductions.
      instructions: instructions of the vector unit.
      stores: registers stored.
    """

    moves: Counter[SourceLine]
    reductions: int
    instructions: float
    stores: float

    @property
    def cycles(self) -> float:
        """Cycles of a step, without those in which no vector instruction runs."""
        units = max(self.instructions / _SLOTS / FILLED, self.stores)
        return units + _LATENCY * self.reductions


def advise_across_lanes(subject: AdviceSubject) -> Iterator[Advice]:
    step, rate, blocks, table = (
        subject.step,
        subject.bytes_per_cycle,
        subject.blocks,
        subject.schedule.table,
    )
    if step is None or not rate or blocks is None or table is None or not subject.cycles:
        return
    if subject.program is None or subject.is_memory_bound or not subject.core_points:
        return
    used = _used(subject)
    if used < MIN_USED:
        return
    turned = _turned(subject, subject.program)
    if turned is None or not turned.moves:
        return
    idle = idle_bundles(subject, subject.core_points)
    compute = idle + turned.cycles
    after = cycles_of_compute(subject, compute)
    if after is None:
        return
    saved = subject.cycles - after
    arrays = sum((o.total or 0) * o.block_bytes for o in blocks.pipelined)
    transposing = 2 * arrays / rate  # each is read and written
    if saved - transposing < MIN_GAIN * subject.cycles or applies(
        subject,
        advise_narrow_block,
        advise_lane_reduction,
        advise_narrow_values,
        advise_narrow_slices,
        advise_single_rolls,
        advise_half_lanes,
        advise_broadcast_product,
        advise_vector_product,
    ):
        return
    source, _ = turned.moves.most_common(1)[0]
    moved = sum(turned.moves.values())
    yield KIND.advice(
        source=source,
        message=(
            f"each step reduces or rotates {moved:,} registers along the lanes, and the "
            f"cross-lane units are used to {100 * used:.0f} %; along rows, this is arithmetic on "
            f"whole registers: about {after:,.0f} of {subject.cycles:,.0f} cycles"
        ),
        remedy=(
            "transpose the arrays outside the kernel, so that the dimension that is reduced or "
            "rotated is the second-to-last one, and at least 128 of the other one are in a block; "
            f"transposing takes about {transposing:,.0f} cycles"
        ),
        evidence=(
            derived("registers reduced or rotated along the lanes in each step", moved),
            derived_share("use of the cross-lane units", used),
            derived("cycles of a step", round(step.compute), unit="cycles"),
            derived(
                "cycles of a step along rows",
                round(compute),
                f"the program's instructions in {FILLED:.0%} of the vector slots, and waits",
                unit="cycles",
            ),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles along rows", round(after), unit="cycles"),
            derived("cycles of transposing", round(transposing), unit="cycles"),
        ),
    )


def _used(subject: AdviceSubject) -> float:
    """Return the share of the cross-lane units' slots that are used, over all bundles."""
    table = subject.schedule.table
    column = table.column("XLU") if table is not None else None
    if table is None or column is None or not subject.executed or not subject.executions:
        return 0.0
    capacity = table.capacity[table.names.index("XLU")]
    busy = sum(map(float.__mul__, map(float, subject.executions), map(float, column)))
    return busy / capacity / subject.executed if capacity else 0.0


def _turned(subject: AdviceSubject, program: MosaicProgram) -> _Turned | None:
    """Count the work of a step with its arrays transposed; None if something is not understood."""
    moves: Counter[SourceLine] = Counter()
    instructions = stores = 0.0
    reductions = 0
    by_place: set[str] = set()
    for operation in program.operations:
        is_by_place = operation.name not in LOADS and by_place.issuperset(operation.operands)
        (by_place.update if is_by_place else by_place.difference_update)(operation.results)
        sizes = _largest(operation)
        if sizes is None or operation.name.startswith("scf."):
            continue
        times = subject.times(operation.line)
        work = _instructions(operation, sizes, program)
        if times is None or work is None:
            return None
        if is_by_place:
            # Of a mask by rows, most registers are true or false: the compiler folds them. Other
            # values are the same for all columns.
            is_mask = {found["kind"] for found in _SHAPED.finditer(operation.text)} <= {"i32", "i1"}
            work = 0 if is_mask else work / -(-sizes[0] // LANES)
        instructions += times * work
        if operation.name in STORES:
            stores += times * _registers(sizes)
        if _is_along_lanes(operation):
            source = program.source(operation)
            if source is None:
                return None
            rows, columns = sizes
            registers = registers_for((rows, columns))
            if registers < MIN_REGISTERS:
                continue
            reductions += 0 if operation.name == "tpu.dynamic_rotate" else times
            moves[source] += times * registers
    return _Turned(moves=moves, reductions=reductions, instructions=instructions, stores=stores)


def _instructions(
    operation: ProgramOperation, sizes: tuple[int, ...], program: MosaicProgram
) -> float | None:
    """Return the instructions of an operation on transposed arrays; None if they are unknown."""
    if len(sizes) != 2:
        return 0 if operation.name in _FREE else None
    text, count = operation.text, _registers(sizes)
    match operation.name:
        case name if name in (*LOADS, *STORES):
            return 0
        case "vector.broadcast":
            # A row that is repeated becomes a column: the lanes of each register.
            before = _shapes(operation)[0]
            is_row = len(before) == 2 and before[0] == 1 < sizes[0]
            return _FUNCTION * -(-sizes[1] // SUBLANES) if is_row else 0
        case name if name in _FREE:
            return 0
        case "tpu.concatenate":
            return count
        case "vector.multi_reduction" | "tpu.reduce_index":
            reduced = _REDUCED.search(text)
            if not _is_along_lanes(operation):
                return None
            each = 2 if reduced is None or reduced["how"] in _TWICE else 1
            return count * each + _WITHIN * -(-sizes[0] // LANES)
        case "tpu.dynamic_rotate":
            if not _is_along_lanes(operation):
                return None
            amount = program.constant(operation.operands[1], operation.line)
            return 0 if amount is not None and amount % SUBLANES == 0 else _ROTATION * count
        case name if name.startswith(("math.", "arith.div")):
            return None if name in ("arith.divsi", "arith.divui") else _FUNCTION * count
        case name if name.startswith("arith.") and not name.startswith("arith.rem"):
            kinds = {found["kind"] for found in _SHAPED.finditer(text)}
            is_conversion = name.startswith(("arith.ext", "arith.trunc"))
            if not is_conversion and not kinds <= set(_WIDE):
                return None  # arithmetic on narrow types
            return count * (2 if name.removeprefix("arith.") in _TWICE else 1)
    return None


def _is_along_lanes(operation: ProgramOperation) -> bool:
    """Return whether an operation reduces or rotates a matrix along its lanes only."""
    sizes = _largest(operation)
    if sizes is None or len(sizes) != 2:
        return False
    if operation.name == "tpu.dynamic_rotate":
        found = _ROTATED.search(operation.text)
        return found is not None and found["dim"] == "1"
    if operation.name == "vector.multi_reduction":
        reduced = _REDUCED.search(operation.text)
        return reduced is not None and reduced["axes"] == "1"
    return operation.name == "tpu.reduce_index" and "axis = 1" in operation.text


def _shapes(operation: ProgramOperation) -> list[tuple[int, ...]]:
    text = operation.text.partition(" loc(")[0]
    return [
        tuple(int(n) for n in found["sizes"].split("x") if n) for found in _SHAPED.finditer(text)
    ]


def _largest(operation: ProgramOperation) -> tuple[int, ...] | None:
    """Return the shape of the largest vector of an operation; None for one without vectors."""
    if operation.name in LOADS and operation.shape is None:
        return None
    shapes = [shape for shape in _shapes(operation) if shape]
    return max(shapes, key=lambda s: (len(s), _registers(s), math.prod(s)), default=None)


def _registers(sizes: tuple[int, ...]) -> int:
    """Return the registers of a matrix after it is transposed."""
    rows, columns = (1, 1, *sizes)[-2:]
    return registers_for((columns, rows))


KIND = AdviceKind(
    name="across-lanes",
    title="Reductions and rotations along the lanes, one after another",
    condition=(
        f"A kernel without matrix products reduces or rotates matrices of at least {MIN_REGISTERS} "
        "registers along the lanes, and nothing along rows; the cross-lane units are used to at "
        f"least {MIN_USED:.0%}; and transposed arrays would save at least {MIN_GAIN:.0%} of the "
        "estimated cycles, besides those that transposing them outside the kernel takes."
    ),
    remedy="Transpose the arrays outside the kernel, and reduce or rotate rows.",
    rule=advise_across_lanes,
)
