"""Advice: a loop combines one row at a time with the result of the rows before it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
)
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.row_loop import (
    EFFECTS,
    LANES,
    MIN_TRIPS,
    Index,
    indices_of,
    is_narrow,
    memory_of,
    vectors_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that is saved."""

IN_STEPS = 6
"""Cycles for a register of 8 rows where 32 rows are combined at once, in 5 steps of a roll, a
selection and a sum: 4.4 to 5.4 were compiled for v5e and v6e."""

SUBLANES = 8


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How rows are combined: in words, as an expression, and what changes nothing."""

    verb: str
    result: str
    expression: str
    neutral: str


_SUM = _Way(verb="adds", result="sum", expression="s + {}", neutral="0")
_MAXIMUM = _Way(
    verb="compares", result="maximum", expression="jnp.maximum(s, {})", neutral="-jnp.inf"
)
_MINIMUM = _Way(
    verb="compares", result="minimum", expression="jnp.minimum(s, {})", neutral="jnp.inf"
)
_WAYS = {
    "arith.addf": _SUM,
    "arith.addi": _SUM,
    "arith.maximumf": _MAXIMUM,
    "arith.maxnumf": _MAXIMUM,
    "arith.minimumf": _MINIMUM,
    "arith.minnumf": _MINIMUM,
}


def advise_running_sum(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    found = []
    for loop in program.loops:
        if loop.trips is None or loop.trips < MIN_TRIPS:
            continue
        scan = _scan(program, loop)
        if scan is None:
            continue
        combined, store = scan
        way = _WAYS[combined.name]
        source = program.source(combined)
        line = subject.at(program.source(store))
        scheduled = subject.loop_of(selected(line, lambda name: name.startswith("vst")))
        width = next((sizes[-1] for sizes in vectors_of(store)[-1:] if sizes), 0)
        if scheduled is None or subject.is_of_grid(scheduled) or not width:
            continue
        inside = subject.inside(scheduled)
        stored = selected(inside, lambda name: name.startswith("vst"))
        cycles = scheduled.size + sum(subject.schedule.delays[scheduled.start : scheduled.stop])
        # The compiler, or the program, may have unrolled the loop.
        rows = max(round(len(stored) / math.ceil(width / LANES)), 1)
        now = SUBLANES * cycles / rows
        then = IN_STEPS * math.ceil(width / LANES)
        share = subject.share(inside)
        if share * (1 - then / now) < MIN_GAIN:
            continue
        memory = subject.operand(memory_of(program, store) or "")
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                operand=memory.name if memory is not None else None,
                message=(
                    f"each of the {loop.trips} iterations {way.verb} one row "
                    f"{'to' if way is _SUM else 'with'} the {way.result} of those before it: 8 "
                    f"rows of {width} columns take {now:.0f} cycles, as one of the 8 rows of a "
                    "register is used at a time"
                ),
                remedy=(
                    "take 32 rows or more in each iteration, and combine them in steps: for k in "
                    "(1, 2, 4, 8, 16), s = "
                    + way.expression.format(
                        f"jnp.where({_shifted(program, loop, store)}, {way.neutral})"
                    )
                    + ", with row = lax.broadcasted_iota(jnp.int32, s.shape, 0); then combine all "
                    "of them with the row at which the iteration before ended"
                ),
                evidence=(
                    derived("iterations", loop.trips),
                    counted("bundles of the loop", scheduled.size),
                    derived("rows in each iteration of the schedule", rows),
                    derived("cycles for 8 rows", round(now), unit="cycles"),
                    derived("the same in steps", then, "about 6 for each 128 columns", "cycles"),
                    derived_share("share of the executed bundles", share),
                ),
            )
        )
    return tuple(found)


def _shifted(program: MosaicProgram, loop: ProgramLoop, store: ProgramOperation) -> str:
    """The rows `k` before each, in the loop's direction, and where there are such."""
    place = indices_of(program, loop, store)
    if place is not None and place[-2][0] * (loop.step or 1) < 0:
        return "row < 32 - k, pltpu.roll(s, 32 - k, 0)"
    return "row >= k, pltpu.roll(s, k, 0)"


def _scan(
    program: MosaicProgram, loop: ProgramLoop
) -> tuple[ProgramOperation, ProgramOperation] | None:
    """The operation that combines a row with those before, and the store of its result."""
    body = [o for o in program.operations if o.line in loop]
    stores = [o for o in body if o.name in STORES]
    if len(stores) != 1 or len(loop.carried) > 1 or not is_narrow(body, is_scalar=False):
        return None
    if any(o.name in (*EFFECTS, "scf.for", "scf.if") for o in body):
        return None
    place = indices_of(program, loop, stores[0])
    if place is None or len(place) < 2 or not place[-2][0] or any(s for s, _ in place[:-2]):
        return None
    for operation in body:
        if operation.name not in _WAYS or "vector<" not in operation.text:
            continue
        users = [user for user, _ in program.final_users(operation)]
        if stores[0] not in users:
            continue
        for before, row in (operation.operands, operation.operands[::-1]):
            if loop.carried:
                is_before = _passed(program, before, operation.line) == loop.carried[0]
                is_before = is_before and any(user.name == "scf.yield" for user in users)
            else:
                is_before = _is_row_before(program, loop, before, operation, stores[0], place)
            if is_before and _is_own(program, loop, row, operation, stores[0]):
                return operation, stores[0]
    return None


def _passed(program: MosaicProgram, value: str, line: int) -> str:
    """The value itself, past operations that only change its form."""
    found = program.producer(value, line)
    while found is not None and found.name in PASSED_ON and found.operands:
        value = found.operands[0]
        found = program.producer(value, found.line)
    return value


def _is_row_before(
    program: MosaicProgram,
    loop: ProgramLoop,
    value: str,
    operation: ProgramOperation,
    store: ProgramOperation,
    place: tuple[Index, ...],
) -> bool:
    """Whether a value is loaded where the iteration before stored its row."""
    load = program.origin(value, operation.line)
    if load is None or load.name not in LOADS or load.line not in loop or loop.step is None:
        return False
    if memory_of(program, load) != memory_of(program, store):
        return False
    factor, offset = place[-2]
    before = (*place[:-2], (factor, offset - factor * loop.step), place[-1])
    return indices_of(program, loop, load) == before


def _is_own(
    program: MosaicProgram,
    loop: ProgramLoop,
    row: str,
    operation: ProgramOperation,
    store: ProgramOperation,
) -> bool:
    """Whether a row depends on no other iteration."""
    sources = program.sources_of(row, operation.line)
    if sources is None or row in loop.carried:
        return False
    return not any(
        not set(loop.carried).isdisjoint(source.operands)
        or (source.name in LOADS and memory_of(program, source) == memory_of(program, store))
        for source in sources
    )


KIND = AdviceKind(
    name="running-sum",
    title="A running sum over single rows",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations adds one row to the sum of those before it, or "
        "takes the maximum or minimum, and stores it; to combine many rows at once, in steps, at "
        f"about {IN_STEPS} cycles for each register of 8 rows, would save at least "
        f"{MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Combine 32 rows or more at once, in steps of `pltpu.roll`.",
    rule=advise_running_sum,
)
