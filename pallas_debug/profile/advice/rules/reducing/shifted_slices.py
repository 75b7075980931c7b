"""Advice: slices at the same odd lane are moved to the first lane for each row offset again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import LOADS, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.row_loop import index_values, memory_of
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, starting
from pallas_debug.profile.advice.tiles import LANES, SUBLANES
from pallas_debug.profile.units import XLU, slot_of

MIN_GAIN = 0.15
"""Minimum share of the estimated cycles that the change must save. For sums of 9 and 25 slices and
maxima of 9, on v5e and v6e, 0.6 to 1.0 of the saved cycles were estimated."""

_OFFSETS = re.compile(r"offsets = \[(?P<offsets>\d{1,9}(?:, \d{1,9}){1,7})\]")


@dataclass(kw_only=True)
class _Slices:
    """Slices of a value or memory that begin at lanes which are no multiple of 128.

    Attributes:
      rows: first rows of the slices, by their first lane.
      operations: the loads and slices.
    """

    width: int
    rows: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    operations: list[ProgramOperation] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of different slices."""
        return sum(map(len, self.rows.values()))


def advise_shifted_slices(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for whole, slices in _slices(program).items():
        lanes = sorted(slices.rows)
        if slices.count < 2 * len(lanes):
            continue
        # The compiler may move a slice only where it is used.
        users = [user for o in slices.operations for user, _ in program.final_users(o)]
        lines = dict.fromkeys(program.source(o) for o in (*slices.operations, *users))
        turns = [p for line in lines for p in starting(subject.at(line), "vrot.lane")]
        estimate = _estimate(subject, turns, len(lanes) / slices.count)
        if estimate is None:
            continue
        needed, cycles, after = estimate
        operand = subject.operand(whole[0])
        name = operand.name if operand is not None else "the value"
        first = lanes[0]
        yield KIND.advice(
            source=program.source(slices.operations[0]),
            operand=operand.name if operand is not None else None,
            message=(
                f"{slices.count} slices of {name} begin at {len(lanes)} "
                f"{'lane' if len(lanes) == 1 else 'different lanes'}, such as {first}, which "
                f"{'is' if len(lanes) == 1 else 'are'} no multiple of {LANES}: the same rows are "
                f"moved along the lanes for each of them, in {len(turns)} rotations, where "
                f"{needed} would do"
            ),
            remedy=(
                "move all rows once for each of these lanes, into a scratch buffer, such as by "
                f"shifted[...] = {name}[..., {first} : {first + slices.width}], and take slices of "
                f"rows from it: about {after:,.0f} of {cycles:,} cycles; or combine rows first, "
                "as in a separable sum or maximum, and move the results"
            ),
            evidence=(
                counted("rotations of lanes of these slices", len(turns)),
                derived("rotations if each row is moved once", needed),
                derived("cycles of the loop", cycles, unit="cycles"),
                derived("the same with these rotations", round(after), unit="cycles"),
                derived_share("share of the executed bundles", subject.share(turns)),
            ),
        )


def _estimate(
    subject: AdviceSubject, turns: list[PlacedInstruction], part: float
) -> tuple[int, int, float] | None:
    """Return rotations, cycles of the loop, and its cycles with fewer; None if little is saved.

    Args:
      part: share of the rotations that would do.
    """
    loop, table = subject.loop_of(turns), subject.schedule.table
    if loop is None or table is None or subject.step is None or not subject.cycles:
        return None
    inside = subject.inside(loop)
    every = [p for p in inside if slot_of(p.opcode) == XLU]
    slots, capacity = subject.slots(loop), table.capacities.get(XLU, 0)
    if not every or not capacity:
        return None
    needed = round(len(turns) * part)
    saved = (len(turns) - needed) * slots.get(XLU, 0) / capacity / len(every)
    cycles = subject.cycles_of(loop)
    after = max(cycles - saved, subject.busiest(slots))
    gain = subject.share(inside) * (1 - after / cycles)
    then = cycles_of_compute(subject, (1 - gain) * subject.step.compute)
    if then is None or then > (1 - MIN_GAIN) * subject.cycles:
        return None
    return needed, cycles, after


def _slices(program: MosaicProgram) -> dict[tuple[str, ...], _Slices]:
    """Return slices of matrices that begin at another lane than the first, by what they slice.

    A key begins with the value or memory, and has the indices of dimensions before the last two.
    """
    found: dict[tuple[str, ...], _Slices] = {}
    for operation in program.named("vector.extract_strided_slice", *LOADS):
        shape, place = operation.shape, _place(program, operation)
        if shape is None or place is None or "vector<" not in operation.text:
            continue
        sizes = shape[0]
        whole, row, lane = place
        if len(sizes) < 2 or sizes[-2] < SUBLANES or sizes[-1] < LANES or lane % LANES == 0:
            continue
        slices = found.setdefault((*whole, str(sizes)), _Slices(width=sizes[-1]))
        slices.rows[lane].add(row)
        slices.operations.append(operation)
    return found


def _place(
    program: MosaicProgram, operation: ProgramOperation
) -> tuple[tuple[str, ...], str, int] | None:
    """Return what an operation slices, with the first indices; the first row; the first lane."""
    if operation.name in LOADS:
        memory, indices = memory_of(program, operation), index_values(operation)
        lane = program.constant(indices[-1], operation.line) if len(indices) > 1 else None
        if memory is None or lane is None:
            return None
        *outer, row = (program.identity(index, operation.line) for index in indices[:-1])
        return (memory, *outer), row, lane
    offsets = _OFFSETS.search(operation.text)
    if offsets is None:
        return None
    *outer, row, last = offsets["offsets"].split(", ")
    taken = program.origin(operation.operands[0], operation.line)
    if taken is not None and taken.name in LOADS:  # whose shift the compiler may postpone
        place = _place(program, taken)
        return ((*place[0], *outer), f"{place[1]} {row}", place[2] + int(last)) if place else None
    return (operation.operands[0], *outer), row, int(last)


KIND = AdviceKind(
    name="shifted-slices",
    title="Slices that are moved along the lanes again for each row offset",
    condition=(
        f"Slices of an array begin at lanes that are no multiple of {LANES}, at least two of "
        "different rows at each of these lanes; to move the rows once for each lane would save at "
        f"least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Move the rows once for each lane offset, into a scratch buffer, and slice rows of it.",
    rule=advise_shifted_slices,
)
