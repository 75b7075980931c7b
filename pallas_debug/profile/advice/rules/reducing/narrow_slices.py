"""Advice: a loop rescales its results for few columns at a time, waiting for each reduction."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.invariant import CHEAP
from pallas_debug.profile.advice.rules.row_loop import indices_of, is_straight, vectors_of
from pallas_debug.profile.advice.subject import AdviceSubject, selected
from pallas_debug.profile.advice.tiles import SUBLANES, registers_for
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import EUP, FILL, LOAD, MXU, SPILL, STORE, VALU

MAX_COLUMNS = 512
"""Maximum number of columns to propose; 1,024 took 0 to 25 % less, and spilled more."""

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""

MIN_GAIN_OF_EACH = 0.5
"""Minimum share of an iteration that the change must save if the number of iterations is unknown:
the last one then works on columns past the bound."""

_MEMORY = re.compile(r"memref<(?P<sizes>(?:\d{1,9}x)*)[a-z]")
_MAXIMA = ("arith.maximumf", "arith.maxnumf")
OF_SPILLS = {LOAD: FILL, STORE: SPILL}
_ENDS = ("tpu.matmul", "vector.multi_reduction", *STORES)


def advise_narrow_slices(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    found: set[SourceLine | None] = set()
    for loop in program.loops:
        if loop.trips is not None and loop.trips < 2:
            continue
        body = program.body(loop)
        if not is_straight(body):
            continue
        for reduction in (o for o in body if o.name == "vector.multi_reduction"):
            shape = next(iter(vectors_of(reduction)), ())
            if len(shape) != 2 or not _is_rescaled(program, loop, reduction):
                continue
            advice = _of_loop(subject, loop, body, reduction, shape)
            if advice is not None and advice.source not in found:
                found.add(advice.source)  # jax makes two loops of one whose bound it does not know
                yield advice
                break


def _of_loop(
    subject: AdviceSubject,
    loop: ProgramLoop,
    body: list[ProgramOperation],
    reduction: ProgramOperation,
    shape: tuple[int, ...],
) -> Advice | None:
    program = subject.program
    rows, columns = shape
    extents = _extents(program, loop, body, columns)
    if not extents:
        return None
    factor = 1
    while (
        not any(extent % (2 * factor * columns) for extent in extents)
        and 2 * factor * columns <= MAX_COLUMNS
    ):
        factor *= 2
    if factor == 1:
        return None
    source = program.source(reduction)
    reductions = selected(subject.at(source), lambda n: ".xlane." in n and "pop" not in n)
    scheduled = subject.own_loop_of(reductions)
    if scheduled is None:
        return None
    reductions = [p for p in reductions if p.bundle in scheduled]
    if len(reductions) > 2 * -(-rows // SUBLANES):
        return None  # the compiler or the program has unrolled the loop
    cycles = subject.cycles_of(scheduled)
    further = _further(subject, subject.slots(scheduled), _wider(program, body, reduction))
    together = cycles + (factor - 1) * further
    share = subject.share(subject.inside(scheduled))
    runs = loop.trips or _average_trips(subject, scheduled)
    if runs is None:
        gain, least = 1 - together / (factor * cycles), MIN_GAIN_OF_EACH
    else:
        # A bound that is not known is rounded up to whole slices, by half of one on average.
        fewer = runs / factor + (0 if loop.trips else (factor - 1) / (2 * factor))
        gain, least = share * (1 - max(fewer, 1) * together / (runs * cycles)), MIN_GAIN
    if gain < least:
        return None
    which, how = _described(loop, runs, factor)
    return KIND.advice(
        source=source,
        message=(
            f"{which} reduces {columns} columns over the lanes and rescales the results of "
            f"previous ones: it takes {cycles} cycles, most of which do not depend on the number "
            f"of columns; {factor} times as many columns would take about {together:.0f}"
        ),
        remedy=f"process {factor * columns} columns in each iteration{how}",
        evidence=(
            *([derived(*_counted(loop, runs))] if runs is not None else []),
            counted("reductions over lanes on this line in each", len(reductions)),
            derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
            derived(
                "cycles that as many columns more take",
                round(further),
                "of the busiest unit, for what works on these columns",
                unit="cycles",
            ),
            derived("cycles of wider ones for as many", round(together / factor), unit="cycles"),
            *([derived_share("share of the executed bundles", share)] if runs is not None else []),
        ),
    )


def _average_trips(subject: AdviceSubject, loop: ScheduledLoop) -> float | None:
    """Return the average iterations of a loop in a grid step; None if the estimate has none."""
    parent = subject.schedule.loops[loop.parent] if loop.parent is not None else None
    if subject.cycles is None or not subject.executions or not subject.core_points:
        return None
    if parent is not None and not subject.is_of_grid(parent):
        return None
    return subject.executions[loop.start] / subject.core_points or None


def _described(loop: ProgramLoop, runs: float | None, factor: int) -> tuple[str, str]:
    """Return how the message names an iteration, and how the remedy goes on."""
    if loop.trips is not None:
        which = f"each of the {loop.trips} iterations"
        return (
            which,
            f": only {loop.trips // factor} iterations then wait for reductions and rescale",
        )
    which = "each iteration"
    if runs is not None:
        which += f", {runs:,.3g} in an average grid step,"
    return which, (
        f", in 1/{factor} as many iterations, rounded up, and mask the columns past the bound: "
        "fewer iterations then wait for reductions and rescale"
    )


def _counted(loop: ProgramLoop, runs: float) -> tuple[str, float]:
    if loop.trips is not None:
        return "iterations", loop.trips
    return "iterations in an average grid step", round(runs, 1)


def _is_rescaled(program: MosaicProgram, loop: ProgramLoop, reduction: ProgramOperation) -> bool:
    """Return whether a maximum over the last axis is combined with earlier ones and then used."""
    if "<maximumf>" not in reduction.text and "<maxnumf>" not in reduction.text:
        return False
    if "[1]" not in reduction.text:
        return False
    for combined, read in program.final_users(reduction):
        if combined.name not in _MAXIMA or combined.line not in loop:
            continue
        others = [o for o in combined.operands if o not in read.results]
        users = [u for u, _ in program.final_users(combined) if u.name not in STORES]
        is_used = any(user.name != "scf.yield" for user in users)
        if is_used and len(others) == 1 and _is_from_before(program, loop, others[0], combined):
            return True
    return False


def _is_from_before(
    program: MosaicProgram, loop: ProgramLoop, value: str, combined: ProgramOperation
) -> bool:
    """Return whether a value is carried, or loaded from a place that is fixed in the loop."""
    if value in loop.carried:
        return True
    origin = program.origin(value, combined.line)
    if origin is None or origin.name not in LOADS:
        return False
    place = indices_of(program, loop, origin)
    return place is not None and not any(step for step, _ in place)


def _extents(
    program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation], columns: int
) -> list[int]:
    """Return the sizes of what the loop traverses in consecutive slices of this many columns.

    Empty if it accesses anything in another way.
    """
    found = []
    for access in (o for o in body if o.name in (*LOADS, *STORES)):
        place, vectors = indices_of(program, loop, access), vectors_of(access)
        if place is not None and access.name == "memref.load" and not any(s for s, _ in place):
            continue  # a number, such as a length
        memory = _MEMORY.search(access.text)
        if place is None or not vectors or len(vectors[-1]) != len(place) or memory is None:
            return []
        sizes = [int(size) for size in memory["sizes"].split("x") if size]
        if len(sizes) != len(place):
            return []
        for (step, _), size, extent in zip(place, vectors[-1], sizes, strict=True):
            if step and (step * (loop.step or 0) != size or size != columns):
                return []
            if step:
                found.append(extent if loop.trips is None else loop.trips * columns)
    return found


def _wider(
    program: MosaicProgram, body: list[ProgramOperation], reduction: ProgramOperation
) -> float:
    """Return the share of elementwise work that grows with the number of columns."""
    lines = {operation.line for operation in body}
    shape = vectors_of(reduction)[0]
    reduced = program.producer(reduction.operands[0], reduction.line)
    waiting = [reduced] if reduced is not None else []
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        made = (program.producer(o, current.line) for o in current.operands)
        before = [m for m in made if m is not None] if current.name not in _ENDS else []
        for other in (*before, *program.users(current)):
            if other.line in seen or other.line not in lines or other.name in _ENDS:
                continue
            own = other.shape
            if own is not None and own[0] == shape and other.name != "vector.broadcast":
                seen.add(other.line)
                waiting.append(other)
    counted_ones = [
        o
        for o in body
        if "vector<" in o.text and o.name not in (*CHEAP, *_ENDS) and not o.name.startswith("scf.")
    ]
    total = sum(map(_registers, counted_ones))
    return sum(_registers(o) for o in counted_ones if o.line in seen) / total if total else 0.0


def _registers(operation: ProgramOperation) -> int:
    """Count the vector registers of an f32 result; a column takes as many as 128 columns."""
    shape = operation.shape
    return registers_for(shape[0] if shape is not None else ())


def _further(subject: AdviceSubject, slots: dict[str, int], wider: float) -> float:
    """Return the cycles of the busiest unit for the same number of additional columns."""
    table = subject.schedule.table
    if table is None:
        return 0.0
    needed = []
    for name, capacity in zip(table.names, table.capacity, strict=True):
        if name == MXU and capacity:
            needed.append(slots.get(name, 0) / capacity)
        elif name in (EUP, VALU) and capacity:
            needed.append(slots.get(name, 0) / capacity * wider)
        elif name in OF_SPILLS and capacity:  # without spills and fills, which grow less
            needed.append((slots.get(name, 0) - slots.get(OF_SPILLS[name], 0)) / capacity)
    return max(needed, default=0.0)


KIND = AdviceKind(
    name="narrow-slices",
    title="A softmax that is rescaled for a few columns at a time",
    condition=(
        f"A loop takes slices of fewer than {MAX_COLUMNS} columns, reduces each to its maxima, "
        f"and rescales previous results by them; wider slices, up to {MAX_COLUMNS} columns, would "
        f"save at least {MIN_GAIN:.0%} of the executed bundles, or {MIN_GAIN_OF_EACH:.0%} of an "
        "iteration if their number is unknown."
    ),
    remedy="Process more columns in each iteration.",
    rule=advise_narrow_slices,
)
