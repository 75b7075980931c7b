"""Advice: halves of the lanes are combined with each other, and each moves to the other's lanes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    MAX_VISITED,
    STORES,
    MosaicProgram,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.row_loop import LANES, index_values, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, selected
from pallas_debug.profile.units import XLU

MIN_GAIN = 0.15
"""Minimum share of the executed bundles that is saved."""

SUBLANES = 8

_OFFSETS = re.compile(r"offsets = \[(?P<offsets>\d{1,9}(?:, \d{1,9}){0,7})\]")
_ELEMENTWISE = re.compile(r"arith\.\w+f|math\.\w+|arith\.select")


@dataclass(frozen=True, kw_only=True)
class _Half:
    """Half of the lanes of a value or of memory.

    Attributes:
      whole: the value, or the memory and the other indices.
      offset: first lane.
      shape: of the half.
    """

    made: ProgramOperation
    whole: tuple[str, ...]
    offset: int
    shape: tuple[int, ...]


def advise_half_lanes(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    groups: dict[tuple[object, ...], dict[int, list[_Half]]] = defaultdict(dict)
    for half in _halves(program):
        groups[half.whole, half.shape].setdefault(half.offset, []).append(half)
    found: dict[SourceLine, Advice] = {}
    for (_, shape), halves in groups.items():
        assert isinstance(shape, tuple)
        width = shape[-1]
        if set(halves) != {0, width} or len(shape) < 2 or shape[-2] < SUBLANES:
            continue
        lower, upper = (_reached(program, halves[offset]) for offset in (0, width))
        if lower is None or upper is None:
            continue
        meeting = [o for o in lower if o.line in {other.line for other in upper}]
        source = program.source(meeting[0]) if meeting else None
        if source is None or source in found:
            continue
        made = [half.made for offset in halves for half in halves[offset]]
        wholes = [program.producer(o.operands[0], o.line) for o in made if o.name not in LOADS]
        used = [user for o in meeting for user in program.users(o)]
        lines = dict.fromkeys(
            program.source(o) for o in (*wholes, *made, *lower, *upper, *used) if o is not None
        )
        moves = [p for line in lines for p in selected(subject.at(line), _turns)]
        advice = _advice(subject, source, shape, moves)
        if advice is not None:
            found[source] = advice
    return tuple(found.values())


def _advice(
    subject: AdviceSubject,
    source: SourceLine,
    shape: tuple[int, ...],
    moves: list[PlacedInstruction],
) -> Advice | None:
    loop = subject.loop_of(moves)
    if loop is None:
        return None
    inside = subject.inside(loop)
    turns = [p for p in moves if loop.start <= p.bundle < loop.stop]
    every = selected(inside, _turns)
    table, slots = subject.schedule.table, subject.slots(loop)
    capacity = dict(zip(table.names, table.capacity, strict=True)) if table is not None else {}
    # As many as the registers of the whole, which are as many as those of one half.
    registers = -(-shape[-2] // SUBLANES)
    if not every or not capacity.get(XLU) or len(turns) <= registers:
        return None
    each = slots.get(XLU, 0) / capacity[XLU] / len(every)
    cycles, saved = subject.cycles_of(loop), (len(turns) - registers) * each
    share = subject.share(inside)
    if share * saved / cycles < MIN_GAIN:
        return None
    width = shape[-1]
    return Advice(
        kind=KIND.name,
        source=source,
        message=(
            f"halves of {width} lanes are combined with each other, in {len(turns)} rotations; "
            f"rotated by {width} lanes as a whole, the value takes {registers}, and the "
            f"cross-lane unit works about {saved:,.0f} of {cycles:,} cycles less"
        ),
        remedy=(
            f"compute on all {2 * width} lanes, with factors as wide: for rotary embeddings, "
            f"x * cos + pltpu.roll(x, {width}, {len(shape) - 1}) * sin, in which sin has the sign "
            "of each half"
        ),
        evidence=(
            counted("rotations of lanes of these values", len(turns)),
            derived("rotations of the whole", registers),
            derived("cycles of the cross-lane unit for each", round(each, 1), unit="cycles"),
            derived_share("share of the executed bundles", share),
        ),
    )


def _turns(opcode: str) -> bool:
    return opcode.startswith("vrot.lane")


def _halves(program: MosaicProgram) -> Iterator[_Half]:
    """Slices and loads of half of the lanes, where that is no whole register."""
    for operation in program.named("vector.extract_strided_slice", *LOADS):
        shape = shape_of(operation.text.partition(" loc(")[0])
        if shape is None or not shape[0] or "vector<" not in operation.text:
            continue
        width = shape[0][-1]
        if width % LANES == 0 or 2 * width > LANES:
            continue
        if operation.name in LOADS:
            *others, last = index_values(operation) or ("",)
            offset = program.constant(last, operation.line) if last else None
            memory = memory_of(program, operation)
            constants = [(i, program.constant(i, operation.line)) for i in others]
            whole = (memory or "", *(i if c is None else str(c) for i, c in constants))
        else:
            offsets = _OFFSETS.search(operation.text)
            *places, last = offsets["offsets"].split(", ") if offsets else ("",)
            offset = int(last) if last else None
            whole = (operation.operands[0], *places)
        if offset is not None:
            yield _Half(made=operation, whole=whole, offset=offset, shape=shape[0])


def _reached(program: MosaicProgram, halves: list[_Half]) -> list[ProgramOperation] | None:
    """Elementwise operations on halves, and where they meet; None if there are others."""
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
    title="Halves of the lanes that are combined with each other",
    condition=(
        f"Both halves of a value of at most {LANES} lanes are sliced, and combined by elementwise "
        "operations or concatenated; one rotation of the whole value instead would save at least "
        f"{MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Compute on all lanes, and combine a value with its rotation by half of them.",
    rule=advise_half_lanes,
)
