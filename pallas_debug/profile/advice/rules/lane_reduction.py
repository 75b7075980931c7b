"""Advice: a loop reduces over lanes in each iteration, where once after it would do."""

from __future__ import annotations

import re

from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
)
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected

_COMBINED_BY = {
    "add": "arith.addf",
    "maximumf": "arith.maximumf",
    "minimumf": "arith.minimumf",
    "maxnumf": "arith.maxnumf",
    "minnumf": "arith.minnumf",
}
"""For each reduction, the operation that combines its results over the iterations."""

_REDUCTION = re.compile(
    r"<(?P<kind>\w+)>.*\[(?P<axes>\d{1,2}(?:, \d{1,2}){0,7})\] : vector<(?P<shape>[\dx]+)x"
)


def advise_lane_reduction(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    found = []
    for operation in program.named("vector.multi_reduction"):
        loops = program.loops_around(operation.line)
        if not loops or loops[0].trips is None or loops[0].trips < 2:
            continue
        if not _is_only_accumulated(program, operation, loops[0]):
            continue
        source = program.source(operation)
        instructions = selected(subject.at(source), lambda name: ".xlane." in name)
        loop = subject.loop_of(instructions)
        if loop is None:
            continue
        instructions = [p for p in instructions if loop.start <= p.bundle < loop.stop]
        trips = loops[0].trips
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                message=(
                    f"each of the {trips} iterations reduces over lanes and only combines the "
                    f"result with the one before: {len(instructions)} cross-lane instructions in "
                    f"{loop.size} bundles, whose results the iteration waits for"
                ),
                remedy=(
                    "accumulate whole vectors elementwise in the loop, and reduce over lanes once "
                    "after it"
                ),
                evidence=(
                    counted("cross-lane instructions in each iteration", len(instructions)),
                    counted("bundles of the loop", loop.size),
                    derived("iterations", trips),
                    derived_share(
                        "share of the executed bundles",
                        subject.share(
                            p for p in subject.instructions if loop.start <= p.bundle < loop.stop
                        ),
                    ),
                ),
            )
        )
    return tuple(found)


def _is_only_accumulated(
    program: MosaicProgram, operation: ProgramOperation, loop: ProgramLoop
) -> bool:
    """Whether a reduction over the last axis is only combined with what the loop carries."""
    found = _REDUCTION.search(operation.text)
    if found is None:
        return False
    rank = found["shape"].count("x") + 1
    if [int(n) for n in found["axes"].split(",")] != [rank - 1]:
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
    """Whether memory that the loop uses for nothing else keeps the result."""
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
    title="A reduction over lanes in every iteration",
    condition=(
        "A loop reduces over the last axis in each iteration, and does nothing with the result but "
        "combine it with what it carries, or keeps in a ref, by the same operation."
    ),
    remedy="Accumulate elementwise, and reduce once after the loop.",
    rule=advise_lane_reduction,
)
