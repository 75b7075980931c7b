"""Advice: iterations that depend on each other wait for addresses and branches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, applies, derived, derived_share
from pallas_debug.profile.advice.compaction import minimum_latencies
from pallas_debug.profile.advice.program import LOADS, STORES, ProgramLoop
from pallas_debug.profile.advice.rules.invariant import advise_invariant
from pallas_debug.profile.advice.rules.kept_in_memory import advise_kept_in_memory
from pallas_debug.profile.advice.rules.mask import advise_mask
from pallas_debug.profile.advice.rules.products.vector_product import advise_vector_product
from pallas_debug.profile.advice.rules.reducing.lane_reduction import advise_lane_reduction
from pallas_debug.profile.advice.rules.reducing.narrow_values import advise_narrow_values
from pallas_debug.profile.advice.rules.reducing.running_sum import advise_running_sum
from pallas_debug.profile.advice.rules.relayout import advise_relayout
from pallas_debug.profile.advice.rules.row_loop import Index, indices_of, is_straight, memory_of
from pallas_debug.profile.advice.rules.short_iterations import advise_short_iterations
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, starting
from pallas_debug.profile.advice.tiles import LANES
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import EUP, MXU, SPILL, XLU, slot_of

MIN_TRIPS = 16
"""Minimum iterations of a loop."""

UNROLLED = 8
"""Number of iterations that the advice unrolls."""

MAX_CYCLES = 64
"""Maximum cycles of an iteration; what longer ones wait for is rarely the branch."""

MIN_GAIN = 0.15
"""Minimum share of the executed bundles that the change must save in any case."""

MIN_TOTAL = 0.15
"""Minimum share of the estimated cycles that the change must save, where copies take their part."""

UNCERTAINTY = 0.2
"""How much longer unrolled iterations may take than estimated: where several issue slots are full,
or an iteration first waits for another unit, the compiler leaves gaps. Of 40 compiled recurrences
on v5e, v6e and tpu7x, all but one, which took 1 % longer, were within it."""

ARITHMETIC = 2
"""Cycles from an instruction of the vector unit to a reader of its result. Compiled recurrences of
one multiplication and one addition take 4.6 cycles for each of 8 unrolled iterations."""

_ARITHMETIC = ("vadd", "vsub", "vmul", "vmax", "vmin", "vsel", "vcmp", "vand", "vor", "vxor", "vsh")
_Places = defaultdict[str | None, set[tuple[Index, ...] | None]]
_ONCE = ("scmp", "sbr", "vmov")
_OTHERS = (
    *(advise_invariant, advise_kept_in_memory, advise_mask, advise_vector_product),
    *(advise_lane_reduction, advise_narrow_values, advise_running_sum, advise_relayout),
    advise_short_iterations,
)


def advise_rolled_loop(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound or subject.schedule.table is None:
        return
    for scheduled in subject.schedule.loops:
        if any(other.parent == scheduled.number for other in subject.schedule.loops):
            continue
        cycles = subject.cycles_of(scheduled)
        if subject.is_of_grid(scheduled) or cycles > MAX_CYCLES:
            continue
        loop = _loop_of(subject, scheduled)
        if loop is None or (loop.trips or 0) % UNROLLED or _reads_back(subject, loop):
            continue
        chain = _chain(subject, scheduled)
        slots = subject.slots(scheduled)
        if not chain or slots.get(MXU) or slots.get(XLU) or slots.get(SPILL):
            continue
        needed = max(chain, subject.busiest(_repeated(subject, scheduled)), slots.get(EUP, 0))
        least = needed + max(cycles - needed, 0) / UNROLLED
        most = least * (1 + UNCERTAINTY)
        share = subject.share(subject.inside(scheduled))
        gain = share * (1 - most / cycles)
        if gain < MIN_GAIN or not _pays(subject, gain) or applies(subject, *_OTHERS):
            continue
        yield KIND.advice(
            source=program.source(program.head(loop)),
            message=(
                f"each of the {loop.trips} iterations takes {cycles} cycles, although the next one "
                f"could begin after about {needed}: it waits for addresses, its other results and "
                f"the branch; unrolled, it would take {least:.1f} to {most:.1f}"
            ),
            remedy=(
                f"pass unroll={UNROLLED} to the loop, or {UNROLLED} times its present unroll; or "
                f"process {UNROLLED} steps in each iteration"
            ),
            evidence=(
                derived("iterations", loop.trips),
                derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
                derived("cycles from one result to the next", chain, unit="cycles"),
                derived("cycles of each, unrolled, at least", round(least, 1), unit="cycles"),
                derived("cycles of each, unrolled, at most", round(most, 1), unit="cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )


def _pays(subject: AdviceSubject, gain: float) -> bool:
    """Return whether a share of the computation is enough of all known cycles."""
    if subject.step is None or not subject.cycles:
        return True
    after = cycles_of_compute(subject, (1 - gain) * subject.step.compute)
    return after is None or after <= (1 - MIN_TOTAL) * subject.cycles


def _loop_of(subject: AdviceSubject, scheduled: ScheduledLoop) -> ProgramLoop | None:
    """Return the loop of the program that was scheduled without being unrolled; None if unclear."""
    program = subject.program
    phis = {}
    for placed in starting(subject.inside(scheduled), "sphi"):
        if len(placed.instruction.operands) == 2 and placed.source is not None:
            phis[placed.instruction.results[0]] = placed
    for placed in starting(subject.inside(scheduled), "sadd.s32"):
        one = placed.instruction
        if len(one.operands) != 1 or one.operands[0] not in phis or len(one.arguments) != 2:
            continue
        counter = phis[one.operands[0]]
        if counter.instruction.operands[1] not in one.results:
            continue
        for loop in program.loops_of(MIN_TRIPS):
            is_here = program.source(program.head(loop)) == counter.source
            # jax unrolls a loop by a larger step; the compiler only shows it in the schedule.
            if is_here and loop.step == 1 and one.arguments[0] == "1":
                return loop
    return None


def _reads_back(subject: AdviceSubject, loop: ProgramLoop) -> bool:
    """Return whether iterations may depend on each other by more than carried values."""
    program, body = subject.program, subject.program.body(loop)
    if not is_straight(body):
        return True
    stored: _Places = defaultdict(set)
    loaded: _Places = defaultdict(set)
    for access in body:
        # jax loads the previous value of each place that it stores to, and does not use it.
        if access.name in STORES or (access.name in LOADS and program.users(access)):
            found = stored if access.name in STORES else loaded
            found[memory_of(program, access)].add(indices_of(program, loop, access))
    if None in stored or (None in loaded and stored):
        return True
    return any(
        not _is_updated(subject, memory, stored[memory] | loaded[memory])
        for memory in stored.keys() & loaded.keys()
    )


def _is_updated(
    subject: AdviceSubject, memory: str | None, places: set[tuple[Index, ...] | None]
) -> bool:
    """Return whether each iteration updates a row of its own, and the compiler can tell.

    In wider memory than a register, the address of a row is not linear in its number. The compiler
    then assumes that rows may be the same: unrolled iterations took 11 cycles of 12 on v6e.
    """
    operand = subject.operand(memory or "")
    if len(places) > 1 or operand is None or operand.shape[-1] > LANES:
        return False
    return all(place is not None and any(step for step, _ in place) for place in places)


def _chain(subject: AdviceSubject, loop: ScheduledLoop) -> int:
    """Return the cycles from a carried vector to its next value; 0 if none is carried."""
    inside = subject.inside(loop)
    latencies = minimum_latencies(subject, loop)
    carried: dict[str, str] = {}
    for placed in inside:
        one = placed.instruction
        if placed.opcode == "vphi" and len(one.operands) == 2:
            carried[one.results[0]] = one.operands[1]
    longest = 0
    for first, last in carried.items():
        times = {first: 0}
        for placed in inside:
            one = placed.instruction
            known = [times[value] for value in one.operands if value in times]
            if placed.opcode == "vphi" or not known:
                continue
            after = max(known) + _latency(placed, latencies)
            for value in one.results:
                times[value] = max(times.get(value, 0), after)
        longest = max(longest, times.get(last, 0))
    return longest


def _repeated(subject: AdviceSubject, loop: ScheduledLoop) -> Counter[str]:
    """Count the issue slots that each unrolled iteration needs, including those for addresses."""
    # Once, whatever the number of copies, a loop compares its counter, branches, and moves carried
    # values; what runs after its last iteration is guarded.
    names = (
        slot_of(placed.opcode)
        for placed in subject.inside(loop)
        if placed.instruction.predicate is None and not placed.opcode.startswith(_ONCE)
    )
    return Counter(name for name in names if name is not None)


def _latency(placed: PlacedInstruction, latencies: dict[str, int]) -> int:
    found = latencies.get(placed.opcode, 1)
    return min(found, ARITHMETIC) if placed.opcode.startswith(_ARITHMETIC) else found


KIND = AdviceKind(
    name="rolled-loop",
    title="A short loop that is not unrolled",
    condition=(
        f"Each of at least {MIN_TRIPS} iterations depends on the previous one, takes at most "
        f"{MAX_CYCLES} cycles, and uses neither the MXU nor the cross-lane units; {UNROLLED} at a "
        "time, which wait for addresses and the branch only once, would save at least "
        f"{MIN_GAIN:.0%} of the executed bundles and {MIN_TOTAL:.0%} of the estimated cycles."
    ),
    remedy="Unroll the loop.",
    rule=advise_rolled_loop,
)
