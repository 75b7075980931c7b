"""Advice: a value is combined with its rotations one by one, where few steps would suffice."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.row_loop import affine_index
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_ROLLS = 15
"""Minimum number of rotations; 7 of 8 rows took hardly longer than 3."""

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""

_DIMENSION = re.compile(r"\bdim (?P<dim>\d)\b")
_COMBINING = (
    *("arith.addf", "arith.addi"),
    *("arith.maximumf", "arith.maxnumf", "arith.minimumf", "arith.minnumf"),
)
_MASKED = PASSED_ON | {"arith.select"}


@dataclass(frozen=True, kw_only=True)
class _Rolls:
    """Rotations of a value by 1, 2, 3 and so on, all of which are combined.

    Attributes:
      first: the first rotation that was found.
      count: number of rotations.
      size: size of the rotated dimension.
    """

    first: ProgramOperation
    count: int
    size: int
    is_loop: bool

    @property
    def is_doubled(self) -> bool:
        """True if doubling steps are equivalent: for a power of two, or for all elements."""
        return (self.count + 1) & self.count == 0 or self.count + 1 >= self.size

    @property
    def steps(self) -> int:
        return self.count.bit_length()


def advise_single_rolls(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    found = {}
    for rolls in (*_unrolled(program), *_in_loops(program)):
        source = program.source(rolls.first)
        if source is None or rolls.count < MIN_ROLLS or not rolls.is_doubled:
            continue
        placed = subject.at(source)
        loop = subject.own_loop_of(placed) if rolls.is_loop else None
        if loop is not None:
            placed = subject.inside(loop)
        share = subject.share(placed)
        if share * (1 - rolls.steps / rolls.count) < MIN_GAIN:
            continue
        found[source] = KIND.advice(
            source=source,
            message=(
                f"a value is combined with {rolls.count} rotations of itself, one by one; with "
                f"doubling steps, {rolls.steps} give the same result"
            ),
            remedy=(
                "rotate the value combined so far: for k in (1, 2, 4, …), s = s + jnp.where(index "
                ">= k, pltpu.roll(s, k, axis), 0), with the operation and the mask of the "
                "rotations"
            ),
            evidence=(
                derived("rotations", rolls.count),
                derived("steps that double", rolls.steps),
                derived_share("share of the executed bundles", share),
            ),
        )
    yield from found.values()


def _unrolled(program: MosaicProgram) -> list[_Rolls]:
    """Return rotations of the same value by 1, 2, 3 and so on, in either direction."""
    groups: dict[tuple[str, int, int], dict[int, ProgramOperation]] = defaultdict(dict)
    for roll in program.named("tpu.dynamic_rotate"):
        place = _place(roll)
        amount = program.constant(roll.operands[1], roll.line) if len(roll.operands) > 1 else None
        if place is not None and amount is not None and _combined(program, roll) is not None:
            groups[roll.operands[0], *place][amount] = roll
    found = []
    for (_, _, size), rolls in groups.items():
        count, names = len(rolls), {_combined(program, roll) for roll in rolls.values()}
        ways = set(range(1, count + 1)), set(range(size - count, size))
        if len(names) == 1 and set(rolls) in ways:
            first = next(iter(rolls.values()))
            found.append(_Rolls(first=first, count=count, size=size, is_loop=False))
    return found


def _in_loops(program: MosaicProgram) -> list[_Rolls]:
    """Return rotations in a loop: by its counter, or repeatedly by one."""
    found = []
    for roll in program.named("tpu.dynamic_rotate"):
        loop, place = next(iter(program.loops_around(roll.line)), None), _place(roll)
        if loop is None or place is None or loop.trips is None or len(roll.operands) < 2:
            continue
        if _combined(program, roll, loop) is None:
            continue
        amount = program.constant(roll.operands[1], roll.line)
        if roll.operands[0] in loop.carried:
            is_each = amount in (1, place[1] - 1) and _is_carried_on(program, roll, loop)
        else:
            made = program.producer(roll.operands[0], roll.line)
            index = affine_index(program, loop, roll.operands[1], roll.line)
            is_each = (made is None or made.line not in loop) and index == (1, 0)
            is_each = is_each and (loop.start, loop.step) == (1, 1)
        if is_each:
            found.append(_Rolls(first=roll, count=loop.trips, size=place[1], is_loop=True))
    return found


def _is_carried_on(program: MosaicProgram, roll: ProgramOperation, loop: ProgramLoop) -> bool:
    """Return whether the next iteration rotates this rotation itself, not a value computed from it.

    A recurrence does not count: it combines its state with a rotation of it, and with other data.
    """
    place = loop.carried.index(roll.operands[0])
    return any(
        user.name == "scf.yield" and user.operands[place : place + 1] == value.results
        for user, value in program.final_users(roll, _MASKED)
    )


def _place(roll: ProgramOperation) -> tuple[int, int] | None:
    """Return the dimension of a rotation, and its size."""
    dim, shape = _DIMENSION.search(roll.text), roll.shape
    if dim is None or shape is None or int(dim["dim"]) >= len(shape[0]):
        return None
    return int(dim["dim"]), shape[0][int(dim["dim"])]


def _combined(
    program: MosaicProgram, roll: ProgramOperation, loop: ProgramLoop | None = None
) -> str | None:
    """Return the name of the operation that combines a rotation, masked or not, with others."""
    if not all(_is_by_place(program, user) for user, _ in program.final_users(roll)):
        return None
    users = [user for user, _ in program.final_users(roll, _MASKED)]
    names = {user.name for user in users if loop is None or user.name != "scf.yield"}
    if len(names) != 1 or not names <= set(_COMBINING):
        return None
    if loop is not None and not all(
        not set(user.operands).isdisjoint(loop.carried)
        for user in users
        if user.name != "scf.yield"
    ):
        return None
    return names.pop()


def _is_by_place(program: MosaicProgram, user: ProgramOperation) -> bool:
    """Return whether an operation is no mask, or selects a constant whatever was loaded."""
    if user.name != "arith.select":
        return True
    mask = program.sources_of(user.operands[0], user.line)
    others = [program.origin(value, user.line) for value in user.operands[1:]]
    is_masked = any(o is not None and o.name in ("arith.constant", "arith.sitofp") for o in others)
    return is_masked and mask is not None and not any(o.name in LOADS for o in mask)


KIND = AdviceKind(
    name="single-rolls",
    title="A sum of rotations computed one by one",
    condition=(
        f"A value is combined with at least {MIN_ROLLS} rotations of itself, by 1, 2, 3 and so "
        f"on, by a sum, maximum or minimum, and doubling steps would save at least {MIN_GAIN:.0%} "
        "of the executed bundles."
    ),
    remedy="Rotate the value combined so far by 1, 2, 4 and so on.",
    rule=advise_single_rolls,
)
