"""Advice: two halves of the lanes are combined, so that each moves to the lanes of the other."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    MAX_VISITED,
    STORES,
    MosaicProgram,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.row_loop import index_values, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, starting
from pallas_debug.profile.advice.tiles import LANES, SUBLANES
from pallas_debug.profile.units import XLU

MIN_GAIN = 0.15
"""Minimum share of the executed bundles that the change must save."""

MAX_DEPTH = 4
"""Maximum depth of nested slices."""

_MEMORY = re.compile(r"memref<(?:\d{1,9}x){0,7}(?P<lanes>\d{1,9})x[a-z]")
_OFFSETS = re.compile(r"offsets = \[(?P<offsets>\d{1,9}(?:, \d{1,9}){0,7})\]")
_TURN = "vrot.lane"
_ELEMENTWISE = re.compile(r"arith\.\w+f|math\.\w+|arith\.select")


@dataclass(frozen=True, kw_only=True)
class _Half:
    """Half of a group of lanes of a value or of memory.

    Attributes:
      whole: identity of the whole: a value, or a memory, with the indices other than lanes.
      width: number of lanes of the whole.
      offset: first lane of the half.
      shape: shape of the half.
    """

    made: ProgramOperation
    whole: tuple[str, ...]
    width: int
    offset: int
    shape: tuple[int, ...]


_Groups = dict[int, dict[int, list[_Half]]]
"""Halves by the first lane of their group, and by their first lane within the group."""


def advise_half_lanes(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    wholes: dict[tuple[object, ...], _Groups] = defaultdict(dict)
    for half in _halves(program):
        offset = half.offset % (2 * half.shape[-1])
        groups = wholes[half.whole, half.width, half.shape]
        groups.setdefault(half.offset - offset, {}).setdefault(offset, []).append(half)
    found: dict[SourceLine, Advice] = {}
    for (_, lanes, shape), groups in wholes.items():
        assert isinstance(shape, tuple)
        assert isinstance(lanes, int)
        width = shape[-1]
        if len(shape) < 2 or shape[-2] < SUBLANES or not _fills_registers(groups, width, lanes):
            continue
        source, lines = _lines(program, groups)
        if source is None or source in found:
            continue
        moves = [p for line in lines for p in starting(subject.at(line), _TURN)]
        advice = _advice(subject, source, shape, len(groups), moves)
        if advice is not None:
            found[source] = advice
    yield from found.values()


def _fills_registers(groups: _Groups, width: int, lanes: int) -> bool:
    """Return whether the groups are pairs of halves that fill registers, which can be rotated.

    A rotation of fewer lanes takes as many instructions as moving the halves: on v5e, a rotation of
    64 lanes took 171 % of the cycles of a concatenation.
    """
    if any(set(halves) != {0, width} for halves in groups.values()):
        return False
    covered = {base // LANES for base in groups}
    full = lanes % LANES == 0 and LANES % (2 * width) == 0
    return full and len(groups) * 2 * width == len(covered) * LANES


def _lines(
    program: MosaicProgram, groups: _Groups
) -> tuple[SourceLine | None, Collection[SourceLine | None]]:
    """Return the first line that combines halves, and all lines that move them.

    The line is None if some halves are not combined, or if groups are combined with each other, as
    single columns that are added up.
    """
    first: SourceLine | None = None
    seen: set[int] = set()
    lines: dict[SourceLine | None, None] = {}
    for halves in groups.values():
        lower, upper = (_reached(program, halves[offset]) for offset in sorted(halves))
        if lower is None or upper is None:
            return None, ()
        meeting = [o for o in lower if o.line in {other.line for other in upper}]
        own = {o.line for o in (*lower, *upper) if o.name != "tpu.concatenate"}
        if not meeting or not seen.isdisjoint(own):
            return None, ()
        seen |= own
        first = first or program.source(meeting[0])
        made = [half.made for offset in halves for half in halves[offset]]
        taken = [program.producer(o.operands[0], o.line) for o in made if o.name not in LOADS]
        used = [user for o in meeting for user in program.users(o)]
        for operation in (*taken, *made, *lower, *upper, *used):
            if operation is not None:
                lines[program.source(operation)] = None
    return first, lines


def _advice(
    subject: AdviceSubject,
    source: SourceLine,
    shape: tuple[int, ...],
    groups: int,
    moves: list[PlacedInstruction],
) -> Advice | None:
    loop = subject.loop_of(moves)
    if loop is None:
        return None
    inside = subject.inside(loop)
    turns = [p for p in moves if p.bundle in loop]
    every = starting(inside, _TURN)
    table, slots = subject.schedule.table, subject.slots(loop)
    capacity = table.capacities if table is not None else {}
    width = shape[-1]
    side_by_side = LANES // (2 * width)
    registers = math.prod(shape[:-2]) * -(-shape[-2] // SUBLANES) * groups // side_by_side
    # A register with several groups is rotated both ways, and each lane selects one of the two.
    rotations = registers * min(side_by_side, 2)
    if not every or not capacity.get(XLU) or len(turns) <= rotations:
        return None
    each = slots.get(XLU, 0) / capacity[XLU] / len(every)
    cycles, saved = subject.cycles_of(loop), (len(turns) - rotations) * each
    share = subject.share(inside)
    if share * saved / cycles < MIN_GAIN:
        return None
    axis = len(shape) - 1
    if side_by_side == 1:
        instead = f"rotating the whole value by {width} lanes takes {rotations}"
        rotated = f"pltpu.roll(x, {width}, {axis})"
    else:
        instead = (
            f"with {side_by_side} such values in each register, rotated both ways, it takes "
            f"{rotations}"
        )
        rotated = (
            f"jnp.where(lane % {2 * width} < {width}, pltpu.roll(x, {LANES - width}, {axis}), "
            f"pltpu.roll(x, {width}, {axis}))"
        )
    return KIND.advice(
        source=source,
        message=(
            f"halves of {width} lanes are combined with each other, in {len(turns)} rotations; "
            f"{instead}, which saves about {saved:,.0f} of {cycles:,} cycles of the cross-lane "
            "unit"
        ),
        remedy=(
            f"compute on all {LANES} lanes, with factors of the same width: for rotary "
            f"embeddings, x * cos + {rotated} * sin, where sin has the sign of each half"
            + (
                f" and lane is lax.broadcasted_iota(jnp.int32, x.shape, {axis})"
                if side_by_side > 1
                else ""
            )
        ),
        evidence=(
            counted("rotations of lanes of these values", len(turns)),
            derived("rotations of the whole", rotations),
            derived("cycles of the cross-lane unit for each", round(each, 1), unit="cycles"),
            derived_share("share of the executed bundles", share),
        ),
    )


def _halves(program: MosaicProgram) -> Iterator[_Half]:
    """Yield slices and loads of half of a group of lanes that are not whole registers."""
    for operation in program.named("vector.extract_strided_slice", *LOADS):
        shape = operation.shape
        if shape is None or not shape[0] or "vector<" not in operation.text:
            continue
        width = shape[0][-1]
        if width % LANES == 0 or 2 * width > LANES:
            continue
        place = _place(program, operation)
        if place is not None and place[2] % width == 0:
            whole, lanes, offset = place
            yield _Half(made=operation, whole=whole, width=lanes, offset=offset, shape=shape[0])


def _place(
    program: MosaicProgram, operation: ProgramOperation, depth: int = 0
) -> tuple[tuple[str, ...], int, int] | None:
    """Return the whole that a load or slice takes lanes of, its lane count, and the first lane."""
    if operation.name in LOADS:
        *others, last = index_values(operation) or ("",)
        offset = program.constant(last, operation.line) if last else None
        sizes = _MEMORY.search(operation.text)
        if offset is None or sizes is None:
            return None
        constants = [(i, program.constant(i, operation.line)) for i in others]
        places = (i if c is None else str(c) for i, c in constants)
        return (memory_of(program, operation) or "", *places), int(sizes["lanes"]), offset
    offsets = _OFFSETS.search(operation.text)
    shape = operation.operand_shape
    if offsets is None or shape is None:
        return None
    *rows, last = offsets["offsets"].split(", ")
    taken = program.producer(operation.operands[0], operation.line)
    if taken is not None and taken.name in (operation.name, *LOADS) and depth < MAX_DEPTH:
        outer = _place(program, taken, depth + 1)
        if outer is not None:
            whole, lanes, first = outer
            return (*whole, *rows), lanes, first + int(last)
    return (operation.operands[0], *rows), shape[0][-1], int(last)


def _reached(program: MosaicProgram, halves: list[_Half]) -> list[ProgramOperation] | None:
    """Return elementwise operations and concatenations that use halves; None if others use them."""
    found: dict[int, ProgramOperation] = {}
    waiting = [half.made for half in halves]
    while waiting and len(found) < MAX_VISITED:
        for user in program.users(waiting.pop()):
            if user.line in found:
                continue
            if user.name in STORES:
                continue
            if user.name == "tpu.concatenate":
                found[user.line] = user
            elif _ELEMENTWISE.fullmatch(user.name):
                found[user.line] = user
                waiting.append(user)
            else:
                return None
    return [found[line] for line in sorted(found)]


KIND = AdviceKind(
    name="half-lanes",
    title="Halves of the lanes combined with each other",
    condition=(
        f"Both halves of {LANES} lanes, or of groups of lanes that fill registers, are sliced and "
        "combined by elementwise operations or concatenated; rotating the whole value instead, "
        "once if a group fills a register and twice otherwise, would save at least "
        f"{MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Compute on all lanes, and combine each value with its rotation by half of the lanes.",
    rule=advise_half_lanes,
)
