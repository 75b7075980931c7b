"""Estimate of a loop's length without some of its instructions, from its schedule.

The remaining instructions keep their order; each moves to the first bundle where its operands are
available and its slot is free. The latency of an opcode is the minimum distance between such an
instruction and a reader of its result in the loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import slot_of


def compacted(subject: AdviceSubject, loop: ScheduledLoop, without: Collection[int] = ()) -> int:
    """Estimate the minimum cycles of an iteration of an innermost loop.

    Args:
      without: identities of instructions to leave out; their results are available at once.
    """
    table, inside = subject.schedule.table, subject.inside(loop)
    if table is None:
        return 0
    capacity = dict(zip(table.names, table.capacity, strict=True))
    latencies = _latencies(subject, loop, inside)
    ready: dict[str, int] = {}
    used: dict[str, Counter[int]] = defaultdict(Counter)
    end = 0
    for placed in inside:
        one = placed.instruction
        if id(placed) in without:
            continue
        slot = slot_of(placed.opcode)
        guards = [one.predicate.removeprefix("!")] if one.predicate else []
        at = max((ready.get(value, 0) for value in (*one.operands, *guards)), default=0)
        if slot is not None:
            while used[slot][at] >= max(capacity.get(slot, 1), 1):
                at += 1
            used[slot][at] += 1
        for value in one.results:
            ready[value] = at + latencies.get(placed.opcode, 1) if slot is not None else at
        after = subject.schedule.delay_slots if placed.opcode.startswith("sbr") else 0
        end = max(end, at + 1 + after)
    return end


def _latencies(
    subject: AdviceSubject, loop: ScheduledLoop, inside: list[PlacedInstruction]
) -> dict[str, int]:
    """Return the minimum distance from an instruction to a reader of its result, by opcode."""
    times, now = [], 0
    for bundle in range(loop.start, loop.stop):
        times.append(now)
        now += 1 + subject.schedule.delays[bundle]
    made: dict[str, tuple[int, str]] = {}
    found: dict[str, int] = {}
    for placed in inside:
        time = times[placed.bundle - loop.start]
        for value in placed.instruction.operands:
            if value in made and time > made[value][0]:
                distance, opcode = time - made[value][0], made[value][1]
                found[opcode] = min(found.get(opcode, distance), distance)
        made.update((value, (time, placed.opcode)) for value in placed.instruction.results)
    return found
