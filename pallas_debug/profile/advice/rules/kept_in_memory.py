"""Advice: a loop keeps its results in memory, so that each iteration loads and stores them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.compaction import compacted
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.invariant import MIN_CYCLES
from pallas_debug.profile.advice.rules.relayout import places_relaid
from pallas_debug.profile.advice.rules.row_loop import indices_of, is_straight, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, Place, PlacedInstruction, starting
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import MXU, VALU, slot_of

MIN_TRIPS = 8
"""Minimum iterations of a loop."""

MAX_REGISTERS = 16
"""Maximum registers to carry instead; carrying 32 spilled others, and took longer on v6e."""

MIN_GAIN = 0.15
"""Minimum share of the executed bundles that the change must save."""

MIN_COMPACT = 0.75
"""Minimum length of a compacted loop, as a share of its cycles; below it, something that the
estimate does not include determines the length."""

_ADDRESS = re.compile(r"\[vmem:\[(?P<place>#allocation\d+(?: \+ \$0x[0-9a-f]+)?)\]")
_ADDRESS_IN_REGISTER = re.compile(r"\[vmem:\[(?P<place>(?P<register>%[\w$.-]+)[^\]]*)\]")


def advise_kept_in_memory(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for loop in program.loops_of(MIN_TRIPS):
        stores = _kept(subject, loop)
        if not stores or _depends_on(program, loop, stores[0], places_relaid(subject)):
            continue  # stored in the layout that other advice proposes, it may be as fast
        at_lines = [p for o in stores for p in subject.at(program.source(o))]
        scheduled = subject.own_loop_of(starting(at_lines, "vst"))
        if scheduled is None:
            continue
        if any(slot_of(placed.opcode) == MXU for placed in subject.inside(scheduled)):
            continue  # the products determine the length, wherever the results are kept
        accesses = _accesses(subject, scheduled)
        places = {id(p): _place(subject, scheduled, p) or "" for p in accesses}
        registers = len(set(places.values()))
        if not 0 < registers <= MAX_REGISTERS:
            continue
        cycles = subject.cycles_of(scheduled)
        if compacted(subject, scheduled, places=places) < MIN_COMPACT * cycles:
            continue
        without = compacted(subject, scheduled, places)
        # Each carried value is moved to its register at the end of an iteration.
        needed = max(without + -(-registers // _slots(subject)) + 1, MIN_CYCLES)
        share = subject.share(subject.inside(scheduled))
        if share * (1 - needed / cycles) < MIN_GAIN:
            continue
        memory = subject.operand(memory_of(program, stores[0]) or "")
        name = memory.name if memory is not None else "a buffer"
        yield KIND.advice(
            source=program.source(stores[0]),
            operand=memory.name if memory is not None else None,
            message=(
                f"each of the {loop.trips} iterations loads and stores {registers} "
                f"{'register' if registers == 1 else 'registers'} of {name} that the previous "
                f"one stored: it takes {cycles} cycles, but only about {needed} without"
            ),
            remedy=(
                "carry the value through lax.fori_loop, as its last argument and the result "
                f"of its body, and store it to {name} after the loop"
            ),
            evidence=(
                derived("iterations", loop.trips),
                counted("registers that are kept in memory", registers),
                counted("loads and stores of them in each", len(accesses)),
                derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
                derived("cycles with carried values", needed, unit="cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )


def _kept(subject: AdviceSubject, loop: ProgramLoop) -> list[ProgramOperation]:
    """Return stores to a place that does not move with the loop, and that the loop also loads."""
    program = subject.program
    body = program.body(loop)
    if not is_straight(body):
        return []
    found = []
    for store in (o for o in body if o.name in STORES and "vector<" in o.text):
        memory, place = memory_of(program, store), indices_of(program, loop, store)
        if memory not in program.arguments or place is None or any(step for step, _ in place):
            continue
        others = [
            o for o in body if o.name in (*LOADS, *STORES) and memory_of(program, o) == memory
        ]
        if any(memory in o.operands for o in body if o not in others):
            continue
        places = {indices_of(program, loop, o) for o in others}
        if places == {place} and any(o.name in LOADS and program.users(o) for o in others):
            found.append(store)
    return found


def _depends_on(
    program: MosaicProgram, loop: ProgramLoop, store: ProgramOperation, places: frozenset[Place]
) -> bool:
    """Return whether a loop computes a stored value on one of these lines."""
    remaining, visited = [store], set[int]()
    while remaining:
        operation = remaining.pop()
        if operation.line in visited or operation.line not in loop:
            continue
        visited.add(operation.line)
        source = program.source(operation)
        if source is not None and source.place in places:
            return True
        makers = (program.producer(operand, operation.line) for operand in operation.operands)
        remaining.extend(maker for maker in makers if maker is not None)
    return False


def _accesses(subject: AdviceSubject, loop: ScheduledLoop) -> list[PlacedInstruction]:
    """Return loads and stores at fixed places that each iteration both loads and stores."""
    inside = starting(subject.inside(loop), "vld", "vst")
    placed = [(p, _place(subject, loop, p)) for p in inside]
    loaded = {place for p, place in placed if p.opcode.startswith("vld")}
    stored = {place for p, place in placed if p.opcode.startswith("vst")}
    both = {place for place in loaded & stored if place is not None}
    return [p for p, place in placed if place in both]


def _place(subject: AdviceSubject, loop: ScheduledLoop, placed: PlacedInstruction) -> str | None:
    """Return the address of an access if it does not change in a loop; else None."""
    found = _ADDRESS.search(placed.instruction.text)
    if found is not None:
        return found["place"]
    found = _ADDRESS_IN_REGISTER.search(placed.instruction.text)
    if found is None:
        return None
    made = subject.definitions.get(found["register"], ())
    if not made or any(p.bundle in loop for p in made):
        return None
    return found["place"]


def _slots(subject: AdviceSubject) -> int:
    table = subject.schedule.table
    return max(table.capacities.get(VALU, 1), 1) if table is not None else 1


KIND = AdviceKind(
    name="kept-in-memory",
    title="A result that a loop keeps in memory",
    condition=(
        f"Each of at least {MIN_TRIPS} iterations, without a matrix product, loads what the "
        f"previous one stored at the same place, in at most {MAX_REGISTERS} registers; carrying "
        f"it would save at least {MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Carry the value through the loop, and store it once after the loop.",
    rule=advise_kept_in_memory,
)
