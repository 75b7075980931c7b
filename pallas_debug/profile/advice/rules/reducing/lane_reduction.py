"""Advice: a loop reduces over lanes or sublanes in each iteration instead of once afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.compaction import compacted
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.invariant import MIN_CYCLES
from pallas_debug.profile.advice.subject import AdviceSubject, selected, starting
from pallas_debug.profile.advice.tiles import LANES, registers_for
from pallas_debug.profile.units import VALU

MIN_GAIN = 0.15
"""Minimum share of the executed bundles that the change must save where rows are reduced."""

MAX_REGISTERS = 32
"""Maximum registers to accumulate in, which leaves as many for computation."""

MIN_SHARE = 0.25
"""Minimum share of the executed bundles of a loop that finds places. Without reductions in each
iteration, compiled kernels take 16 to 68 % of the cycles."""

SPILLED = 12
"""Cycles to compare a register with values and iterations that do not fit in registers. Compiled
kernels take 4 to 10; on v4, 64 rows of 512 columns take 277 with a reduction, and 315 without."""

_COMBINED_BY = {
    "add": "arith.addf",
    "maximumf": "arith.maximumf",
    "minimumf": "arith.minimumf",
    "maxnumf": "arith.maxnumf",
    "minnumf": "arith.minnumf",
}
"""For each kind of reduction, the operation that combines its results over the iterations."""

_REDUCTION = re.compile(
    r"<(?P<kind>\w+)>.*\[(?P<axes>\d{1,2}(?:, \d{1,2}){0,7})\] : vector<(?P<shape>[\dx]+)x"
)

_PLACE = re.compile(
    r"axis = (?P<axis>\d) : i32, kind = #tpu\.reduction_kind<arg_(?P<kind>max|min)>\} : "
    r"vector<(?P<shape>\d{1,9}(?:x\d{1,9})*)x[a-z]"
)


def advise_lane_reduction(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for operation in program.named("vector.multi_reduction"):
        loops = program.loops_around(operation.line)
        if not loops or loops[0].trips is None or loops[0].trips < 2:
            continue
        axis = _axis_from_the_end(operation)
        if axis not in (1, 2) or not _is_only_accumulated(program, operation, loops[0]):
            continue
        source = program.source(operation)
        if axis == 2:
            yield from _of_sublanes(subject, operation, loops[0])
            continue
        instructions = selected(subject.at(source), lambda name: ".xlane." in name)
        loop = subject.loop_of(instructions)
        if loop is None:
            continue
        instructions = [p for p in instructions if p.bundle in loop]
        trips = loops[0].trips
        yield KIND.advice(
            source=source,
            message=(
                f"each of the {trips} iterations reduces over lanes and only combines the "
                f"result with the previous one: {len(instructions)} cross-lane instructions "
                f"in {loop.size} bundles, for whose results the iteration waits"
            ),
            remedy=(
                "accumulate whole vectors elementwise in the loop, and reduce over lanes once "
                "after the loop"
            ),
            evidence=(
                counted("cross-lane instructions in each iteration", len(instructions)),
                counted("bundles of the loop", loop.size),
                derived("iterations", trips),
                derived_share(
                    "share of the executed bundles",
                    subject.share(subject.inside(loop)),
                ),
            ),
        )
    yield from _of_places(subject)


def _of_places(subject: AdviceSubject) -> Iterator[Advice]:
    """Return advice on loops that find the place of the largest or smallest value over lanes."""
    program = subject.program
    for operation in program.named("tpu.reduce_index"):
        loop = next(iter(program.loops_around(operation.line)), None)
        kind = _PLACE.search(operation.text)
        if loop is None or loop.trips is None or loop.trips < 2 or kind is None:
            continue
        if int(kind["axis"]) != kind["shape"].count("x") or not _is_only_chosen(
            program, operation, loop
        ):
            continue
        source = program.source(operation)
        instructions = selected(subject.at(source), lambda name: ".xlane." in name)
        scheduled = subject.own_loop_of(instructions)
        if scheduled is None:
            continue
        inside = subject.inside(scheduled)
        crossing = selected(inside, lambda name: ".xlane." in name)
        share = subject.share(inside)
        if share < MIN_SHARE or subject.cycles_of(scheduled) < _elementwise(kind["shape"]):
            continue
        extreme = {"max": "largest", "min": "smallest"}[kind["kind"]]
        yield KIND.advice(
            source=source,
            message=(
                f"each of the {loop.trips} iterations finds the {extreme} value over lanes and "
                "its place, and only compares it with that of the previous ones: "
                f"{len(crossing)} cross-lane instructions in {scheduled.size} bundles, for "
                "whose results the iteration waits"
            ),
            remedy=(
                f"keep the {extreme} values and the numbers of their iterations elementwise, "
                f"in whole vectors, and find the {extreme} of them and its column once after "
                "the loop"
            ),
            evidence=(
                counted("cross-lane instructions in each iteration", len(crossing)),
                counted("bundles of the loop", scheduled.size),
                derived("iterations", loop.trips),
                derived_share("share of the executed bundles", share),
            ),
        )


def _elementwise(shape: str) -> int:
    """Return the cycles to compare a block with the values and iterations that are kept."""
    registers = registers_for([int(n) for n in shape.split("x")])
    return registers * (SPILLED if 2 * registers > MAX_REGISTERS else 2)


def _is_only_chosen(program: MosaicProgram, operation: ProgramOperation, loop: ProgramLoop) -> bool:
    """Return whether a place is only carried on if its value is beyond the one carried so far."""
    users = program.final_users(operation, PASSED_ON | {"arith.addi"})
    if len(users) != 1 or users[0][0].name != "arith.select" or users[0][0].line not in loop:
        return False
    select = users[0][0]
    compare = program.producer(select.operands[0], select.line)
    if compare is None or compare.name not in ("arith.cmpf", "arith.cmpi"):
        return False
    if not _is_yielded(program, select) or set(select.operands[1:]).isdisjoint(loop.carried):
        return False
    extremes = [o for o in compare.operands if o not in loop.carried]
    extreme = program.origin(extremes[0], compare.line) if len(extremes) == 1 else None
    if extreme is None or extreme.name != "vector.multi_reduction":
        return False
    others = [user for user, _ in program.final_users(extreme) if user.line != compare.line]
    return extreme.operands[0] == operation.operands[0] and all(
        user.line in loop
        and not set(user.operands).isdisjoint(loop.carried)
        and _is_yielded(program, user)
        for user in others
    )


def _is_yielded(program: MosaicProgram, operation: ProgramOperation) -> bool:
    return {user.name for user, _ in program.final_users(operation)} == {"scf.yield"}


def _of_sublanes(
    subject: AdviceSubject, operation: ProgramOperation, trips: ProgramLoop
) -> Iterator[Advice]:
    """Return advice on a reduction over sublanes, which takes 3 rotations per 128 columns."""
    source = subject.program.source(operation)
    rotations = starting(subject.at(source), "vrot.slane")
    loop = subject.own_loop_of(rotations)
    reduced = _REDUCTION.search(operation.text)
    if loop is None or reduced is None:
        return
    rows, columns = [int(n) for n in reduced["shape"].split("x")][-2:]
    registers = registers_for((rows, columns))
    if registers > MAX_REGISTERS or columns < LANES:
        return
    inside = subject.inside(loop)
    rotations = [p for p in rotations if p.bundle in loop]
    cycles = subject.cycles_of(loop)
    # Each rotation is followed by an operation that combines its result.
    less = {VALU: 2 * len(rotations)}
    # Other waits of the iteration remain, such as for a reduction over lanes.
    rotated = {value for placed in rotations for value in placed.instruction.results}
    combining = [p for p in inside if not rotated.isdisjoint(p.instruction.operands)]
    waiting = compacted(subject, loop, {id(placed) for placed in (*rotations, *combining)})
    needed = max(subject.busiest(subject.slots(loop), less), waiting, MIN_CYCLES)
    share = subject.share(inside)
    if not rotations or share * (1 - needed / cycles) < MIN_GAIN:
        return
    yield KIND.advice(
        source=source,
        message=(
            f"each of the {trips.trips} iterations reduces over the 8 rows of a register and "
            f"only combines the result with the previous one: {len(rotations)} rotations, "
            f"each of which depends on the previous one, in an iteration of {cycles} cycles, "
            f"which would take about {needed} without them"
        ),
        remedy=(
            f"accumulate whole vectors of ({rows}, {columns}) elementwise in the loop, and "
            "reduce over the rows once after the loop"
        ),
        evidence=(
            derived("iterations", trips.trips),
            counted("rotations of sublanes in each", len(rotations)),
            derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
            derived("cycles that the rest needs", needed, unit="cycles"),
            derived("registers to accumulate in", registers),
            derived_share("share of the executed bundles", share),
        ),
    )


def _axis_from_the_end(operation: ProgramOperation) -> int | None:
    """Return the reduced axis, counted from the end: 1 for the last; None if there are several."""
    found = _REDUCTION.search(operation.text)
    if found is None or "," in found["axes"]:
        return None
    return found["shape"].count("x") + 1 - int(found["axes"])


def _is_only_accumulated(
    program: MosaicProgram, operation: ProgramOperation, loop: ProgramLoop
) -> bool:
    """Return whether a reduction's result is only combined with what the loop carries or keeps."""
    found = _REDUCTION.search(operation.text)
    if found is None:
        return False
    users = program.final_users(operation)
    if len(users) != 1:
        return False
    combined, read = users[0]
    if combined.name != _COMBINED_BY.get(found["kind"]) or combined.line not in loop:
        return False
    others = [o for o in combined.operands if o not in read.results]
    if len(others) != 1:
        return False
    following = program.final_users(combined)
    if others[0] in loop.carried:
        return len(following) == 1 and following[0][0].name == "scf.yield"
    return _is_kept(program, loop, others[0], combined, [user for user, _ in following])


def _is_kept(
    program: MosaicProgram,
    loop: ProgramLoop,
    before: str,
    combined: ProgramOperation,
    users: list[ProgramOperation],
) -> bool:
    """Return whether the result is kept in memory that the loop does not otherwise read."""
    loaded = program.origin(before, combined.line)
    if loaded is None or loaded.name not in LOADS or loaded.line not in loop:
        return False
    if len(users) != 1 or users[0].name not in STORES or not loaded.operands:
        return False
    memory, place = loaded.operands[0], loaded.operands[1:]
    if memory not in users[0].operands:
        return False
    if any(program.constant(i, loaded.line) != 0 for i in place):
        return False
    stored = users[0].operands[1 + users[0].operands.index(memory) :]
    if any(program.constant(i, users[0].line) not in (0, None) for i in stored):
        return False
    return not any(
        memory in operation.operands and program.final_users(operation)
        for operation in program.named(*LOADS)
        if operation.line in loop and operation.line != loaded.line
    )


KIND = AdviceKind(
    name="lane-reduction",
    title="A reduction in every iteration",
    condition=(
        "A loop reduces over the last axis in each iteration and only combines the result, by the "
        "same operation, with a value that it carries or keeps in a ref, or the place of the "
        "largest or smallest value with the one carried so far. Or it reduces over the "
        f"second-to-last axis, and accumulating whole vectors, in at most {MAX_REGISTERS} "
        f"registers, would save at least {MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Accumulate elementwise, and reduce once after the loop.",
    rule=advise_lane_reduction,
)
