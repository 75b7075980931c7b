"""Estimate of a loop's length without some of its instructions, from its schedule.

The remaining instructions keep their order; each moves to the first bundle where its operands are
available and its slot is free. The latency of an opcode is the minimum distance between such an
instruction and a reader of its result in the loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from types import MappingProxyType

from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import slot_of

MIN_USE = 0.8
"""Minimum share of a loop's bundles that its busiest slot needs; below it, the slot is no limit."""

MIN_LESS = 0.15
"""Minimum share of a loop's bundles by which its busiest slot must need fewer."""

MIN_BUNDLES = 0.1
"""Minimum share of the executed bundles that belong to a loop for which a slot is the limit."""


def bundles_less(
    subject: AdviceSubject, loop: ScheduledLoop, less: Mapping[str, int]
) -> tuple[int, int] | None:
    """Return the bundles that a loop's busiest issue slot needs, now and with fewer slots used.

    None if no slot limits the loop, or if the difference is small.

    Args:
      less: slots that would not be used, by column.
    """
    slots = subject.slots(loop)
    now, then = subject.busiest(slots), subject.busiest(slots, less)
    if now < MIN_USE * loop.size or now - then < MIN_LESS * loop.size:
        return None
    return now, then


def compacted(
    subject: AdviceSubject,
    loop: ScheduledLoop,
    without: Collection[int] = (),
    places: Mapping[int, str] = MappingProxyType({}),
) -> int:
    """Estimate the minimum cycles of an iteration of an innermost loop.

    Args:
      without: identities of instructions to leave out; their results are available at once.
      places: fixed places that loads and stores access, by identity of the instruction. A load
        waits for an earlier store to its place.
    """
    table, inside = subject.schedule.table, subject.inside(loop)
    if table is None:
        return 0
    capacity = table.capacities
    latencies = minimum_latencies(subject, loop, places)
    ready: dict[str, int] = {}
    used: dict[str, Counter[int]] = defaultdict(Counter)
    end = 0
    for placed in inside:
        one = placed.instruction
        if id(placed) in without:
            continue
        slot = slot_of(placed.opcode)
        guards = [one.predicate.removeprefix("!")] if one.predicate else []
        read = (*_read(placed, places), *guards)
        at = max((ready.get(value, 0) for value in read), default=0)
        if slot is not None:
            while used[slot][at] >= max(capacity.get(slot, 1), 1):
                at += 1
            used[slot][at] += 1
        for value in _written(placed, places):
            ready[value] = at + latencies.get(placed.opcode, 1) if slot is not None else at
        after = subject.schedule.delay_slots if placed.opcode.startswith("sbr") else 0
        end = max(end, at + 1 + after)
    return end


def minimum_latencies(
    subject: AdviceSubject, loop: ScheduledLoop, places: Mapping[int, str] = MappingProxyType({})
) -> dict[str, int]:
    """Return the minimum distance from an instruction to a reader of its result, by opcode."""
    times, now = [], 0
    for bundle in range(loop.start, loop.stop):
        times.append(now)
        now += 1 + subject.schedule.delays[bundle]
    made: dict[str, tuple[int, str]] = {}
    found: dict[str, int] = {}
    for placed in subject.inside(loop):
        time = times[placed.bundle - loop.start]
        for value in _read(placed, places):
            if value in made and time > made[value][0]:
                distance, opcode = time - made[value][0], made[value][1]
                found[opcode] = min(found.get(opcode, distance), distance)
        made.update((value, (time, placed.opcode)) for value in _written(placed, places))
    return found


def _read(placed: PlacedInstruction, places: Mapping[int, str]) -> tuple[str, ...]:
    """Return the values that an instruction reads, and the place that it loads from."""
    is_load = id(placed) in places and placed.opcode.startswith("vld")
    return (*placed.instruction.operands, *((places[id(placed)],) if is_load else ()))


def _written(placed: PlacedInstruction, places: Mapping[int, str]) -> tuple[str, ...]:
    """Return the values that an instruction defines, and the place that it stores to."""
    is_store = id(placed) in places and placed.opcode.startswith("vst")
    return (*placed.instruction.results, *((places[id(placed)],) if is_store else ()))
