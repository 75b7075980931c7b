"""Advice: a loop combines one row at a time with the result of the previous rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.row_loop import (
    MIN_TRIPS,
    Index,
    indices_of,
    is_narrow,
    is_straight,
    memory_of,
    vectors_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.advice.tiles import LANES, SUBLANES

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""

IN_STEPS = 6
"""Cycles per register of 8 rows if 32 rows are combined at once, in 5 steps of a roll, a selection
and a sum; kernels compiled for v5e and v6e take 4.4 to 5.4."""


@dataclass(frozen=True, kw_only=True)
class _Way:
    """Operation that combines rows: wording, expression, and neutral element."""

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


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """Rows that are combined one by one with the result of the previous rows.

    Attributes:
      combined: combining operations, one for each row in an iteration of the program.
      stores: stores of the results, in the same order.
      is_exclusive: whether a row is stored before its own value is combined.
    """

    combined: tuple[ProgramOperation, ...]
    stores: tuple[ProgramOperation, ...]
    is_exclusive: bool


def advise_running_sum(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for loop in program.loops_of(MIN_TRIPS):
        scan = _scan(program, loop)
        if scan is None:
            continue
        way, count = _WAYS[scan.combined[0].name], len(scan.combined)
        source = program.source(scan.combined[0])
        lines = list(dict.fromkeys(program.source(store) for store in scan.stores))
        at_lines = [p for line in lines for p in subject.at(line)]
        scheduled = subject.own_loop_of(starting(at_lines, "vst"))
        width = next((sizes[-1] for sizes in vectors_of(scan.stores[0])[-1:] if sizes), 0)
        if scheduled is None or not width:
            continue
        inside = subject.inside(scheduled)
        stored = [p for p in starting(at_lines, "vst") if p in inside]
        cycles = subject.cycles_of(scheduled)
        # The compiler or the program may have unrolled the loop. A line may also store the sum.
        per_row = len(_stores_of(program, loop, lines)) / count * math.ceil(width / LANES)
        rows = max(round(len(stored) / per_row), 1)
        now = SUBLANES * cycles / rows
        then = IN_STEPS * math.ceil(width / LANES)
        share = subject.share(inside)
        if share * (1 - then / now) < MIN_GAIN:
            continue
        memory = subject.operand(memory_of(program, scan.stores[0]) or "")
        one = "one row" if count == 1 else f"{count} rows one by one"
        yield KIND.advice(
            source=source,
            operand=memory.name if memory is not None else None,
            message=(
                f"each of the {loop.trips} iterations {way.verb} {one} "
                f"{'to' if way is _SUM else 'with'} the {way.result} of those before it: 8 "
                f"rows of {width} columns take {now:.0f} cycles, because only one of the 8 "
                "rows of a register is used at a time"
            ),
            remedy=(
                "process at least 32 rows in each iteration, and combine them in steps: for k "
                "in (1, 2, 4, 8, 16), s = "
                + way.expression.format(
                    f"jnp.where({_shifted(program, loop, scan)}, {way.neutral})"
                )
                + ", with row = lax.broadcasted_iota(jnp.int32, s.shape, 0); then combine all "
                "of them with the last row of the previous iteration"
                + (_moved_on(program, loop, scan) if scan.is_exclusive else "")
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


def _stores_of(
    program: MosaicProgram, loop: ProgramLoop, lines: list[SourceLine | None]
) -> list[ProgramOperation]:
    return [o for o in program.named(*STORES) if o.line in loop and program.source(o) in lines]


def _goes_back(program: MosaicProgram, loop: ProgramLoop, scan: _Scan) -> bool:
    """Return whether the loop runs from the last row to the first."""
    place = indices_of(program, loop, scan.stores[0])
    return place is not None and place[-2][0] * (loop.step or 1) < 0


def _shifted(program: MosaicProgram, loop: ProgramLoop, scan: _Scan) -> str:
    """Describe the condition and roll that select the row `k` before, in the loop's direction."""
    if _goes_back(program, loop, scan):
        return "row < 32 - k, pltpu.roll(s, 32 - k, 0)"
    return "row >= k, pltpu.roll(s, k, 0)"


def _moved_on(program: MosaicProgram, loop: ProgramLoop, scan: _Scan) -> str:
    """Describe what to store where each row gets the result of previous rows, without its own."""
    shift, end = (31, "last") if _goes_back(program, loop, scan) else (1, "first")
    return (
        f", and store pltpu.roll(s, {shift}, 0) with that row as its {end} one, since each row "
        f"gets the {_WAYS[scan.combined[0].name].result} of those before it"
    )


def _scan(program: MosaicProgram, loop: ProgramLoop) -> _Scan | None:
    """Return rows that a loop combines with the result of previous rows, and stores."""
    body = program.body(loop)
    if len(loop.carried) > 1 or not is_narrow(body, is_scalar=False):
        return None
    if not is_straight(body):
        return None
    rows = _Rows.of(program, loop, body)
    if rows is None:
        return None
    combined = _chain(rows)
    if not combined or len({o.name for o in combined}) > 1:
        return None
    results: list[ProgramOperation | None] = [None, *combined]
    stored = [rows.stored(store) for store in rows.stores]
    is_exclusive = stored == results[:-1]
    if (stored != results[1:] and not is_exclusive) or not rows.ends_with(combined[-1]):
        return None
    return _Scan(combined=combined, stores=rows.stores, is_exclusive=is_exclusive)


def _chain(rows: _Rows) -> tuple[ProgramOperation, ...]:
    """Return the chain of operations that each combine a row with the previous result."""
    found: list[ProgramOperation] = []
    before: ProgramOperation | None = None
    for operation in rows.body:
        if operation.name not in _WAYS or "vector<" not in operation.text:
            continue
        for value, row in (operation.operands, operation.operands[::-1]):
            if rows.result(value, operation.line) == before and rows.is_own(row, operation):
                found.append(operation)
                before = operation
                break
    return tuple(found) if len(found) == len(rows.stores) else ()


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Stores of a loop: single rows, in order, and the sum that is kept in a ref.

    Attributes:
      stores: stores of rows whose place moves with the loop.
      places: places of `stores`.
      kept: stores of the sum, all at the same place.
    """

    program: MosaicProgram
    loop: ProgramLoop
    body: list[ProgramOperation]
    stores: tuple[ProgramOperation, ...]
    places: tuple[tuple[Index, ...], ...]
    kept: tuple[ProgramOperation, ...]

    @classmethod
    def of(
        cls, program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]
    ) -> _Rows | None:
        stores, places, kept = [], [], []
        for store in (o for o in body if o.name in STORES):
            place = indices_of(program, loop, store)
            if place is None or len(place) < 2 or any(s for s, _ in (*place[:-2], place[-1])):
                return None
            if place[-2][0]:
                stores.append(store)
                places.append(place)
            else:
                kept.append(store)
        memories = {memory_of(program, store) for store in stores}
        state = {(memory_of(program, o), indices_of(program, loop, o)) for o in kept}
        if len(memories) != 1 or len(state) > 1 or (kept and loop.carried):
            return None
        if memories & {memory for memory, _ in state} or loop.step is None:
            return None
        step = places[0][-2][0] * loop.step
        if abs(step) != len(stores) or any(
            place != _moved(places[0], n if step > 0 else -n) for n, place in enumerate(places)
        ):
            return None
        return cls(
            program=program,
            loop=loop,
            body=body,
            stores=tuple(stores),
            places=tuple(places),
            kept=tuple(kept),
        )

    def result(self, value: str, line: int) -> ProgramOperation | str | None:
        """Return the operation that computes a value; None for the previous iteration's result.

        Loads from places that the loop has stored to are resolved to the stored value.
        """
        value = _passed(self.program, value, line)
        if self.loop.carried and value == self.loop.carried[0]:
            return None
        made = self.program.producer(value, line)
        if made is None or made.name not in LOADS or made.line not in self.loop:
            return made or value
        memory = memory_of(self.program, made)
        place = indices_of(self.program, self.loop, made)
        for store in reversed((*self.stores, *self.kept)):
            if store.line > made.line or memory_of(self.program, store) != memory:
                continue
            if indices_of(self.program, self.loop, store) == place:
                return self.stored(store)
        if self.kept and memory == memory_of(self.program, self.kept[0]):
            is_state = place == indices_of(self.program, self.loop, self.kept[0])
            return None if is_state else made
        step = 1 if self.places[0][-2][0] * (self.loop.step or 1) > 0 else -1
        is_before = memory == memory_of(self.program, self.stores[0])
        is_before = is_before and not self.kept and not self.loop.carried
        return None if is_before and place == _moved(self.places[0], -step) else made

    def stored(self, store: ProgramOperation) -> ProgramOperation | str | None:
        """Return the result that is stored, in the form that `result` returns."""
        count = len(indices_of(self.program, self.loop, store) or ())
        at = 0 if store.name in ("memref.store", "vector.store") else 1 + count
        if len(store.operands) != count + 2:
            return "masked"
        return self.result(store.operands[at], store.line)

    def ends_with(self, last: ProgramOperation) -> bool:
        """Return whether the next iteration continues with this result."""
        if self.kept:
            return self.stored(self.kept[-1]) == last
        if self.loop.carried:
            ends = [o for o in self.body if o.name == "scf.yield"]
            return len(ends) == 1 and self.result(ends[0].operands[0], ends[0].line) == last
        return self.stored(self.stores[-1]) == last

    def is_own(self, row: str, operation: ProgramOperation) -> bool:
        """Return whether a row does not depend on other rows."""
        sources = self.program.sources_of(row, operation.line)
        if sources is None or row in self.loop.carried:
            return False
        written = {memory_of(self.program, store) for store in (*self.stores, *self.kept)}
        return not any(
            not set(self.loop.carried).isdisjoint(source.operands)
            or (source.name in LOADS and memory_of(self.program, source) in written)
            for source in sources
        )


def _moved(place: tuple[Index, ...], rows: int) -> tuple[Index, ...]:
    factor, offset = place[-2]
    return (*place[:-2], (factor, offset + rows), place[-1])


def _passed(program: MosaicProgram, value: str, line: int) -> str:
    """Return the underlying value, looking through operations that only change its form."""
    found = program.producer(value, line)
    while found is not None and found.name in PASSED_ON and found.operands:
        value = found.operands[0]
        found = program.producer(value, found.line)
    return value


KIND = AdviceKind(
    name="running-sum",
    title="A running sum over single rows",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations adds one row to the sum of those before it, "
        "or takes the maximum or minimum, and stores it; combining many rows at once, in steps, "
        f"at about {IN_STEPS} cycles for each register of 8 rows, would save at least "
        f"{MIN_GAIN:.0%} of the executed bundles."
    ),
    remedy="Combine at least 32 rows at once, in steps of `pltpu.roll`.",
    rule=advise_running_sum,
)
