"""Advice: the kernel waits for all copies before it works on the data of the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import size_text
from pallas_debug.profile.advice.program import LOADS, MosaicProgram, ProgramLoop, ProgramOperation
from pallas_debug.profile.advice.rules.copying.places import (
    WAITS,
    CopyPlace,
    copy_size,
    has_own_place,
    is_into_vmem,
    target_of,
    target_value,
    waited_target,
)
from pallas_debug.profile.advice.rules.row_loop import index_values, indices_of, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_GAIN = 0.15
"""Minimum share of the kernel's cycles that waiting for each copy by itself would save."""

MIN_COPIES = 4
"""Minimum number of copies that are waited for together."""

MIN_SHOWN = 0.8
"""Minimum cycles of the kernel, as a share of those in which its copies overlap with nothing."""


@dataclass(frozen=True, kw_only=True)
class _Together:
    """Copies to places of one buffer, and the waits for all of them.

    Attributes:
      start: the first operation that starts a copy.
      wait: the first wait.
      memory: the buffer.
      count: number of copies.
      loop: loop whose iterations each work on the data of one copy; None if that is unrolled.
    """

    start: ProgramOperation
    wait: ProgramOperation
    memory: str
    count: int
    loop: ProgramLoop | None


def advise_wait_for_all(subject: AdviceSubject) -> Iterator[Advice]:
    program, rate, step = subject.program, subject.bytes_per_cycle, subject.step
    if not rate or step is None or not subject.cycles:
        return
    for copies in (*_in_loops(program), *_unrolled(program)):
        size = copy_size(copies.start)
        times = subject.times(copies.start.line)
        if size is None or times is None or not _is_only_for(program, copies):
            continue
        runs = subject.core_points * max(times // (copies.count if copies.loop else 1), 1)
        transfer = copies.count * size / rate
        compute = step.compute * subject.core_points / max(runs, 1)
        waited = subject.latency + transfer
        if subject.cycles < MIN_SHOWN * (waited + compute) * runs:
            continue  # the copies were started long before
        # What overlaps is all but the first copy.
        saved = min(transfer, compute) * (1 - 1 / copies.count) * runs
        if saved < MIN_GAIN * subject.cycles:
            continue
        operand = subject.operand(copies.memory)
        where = operand.name if operand is not None else "the buffer"
        yield KIND.advice(
            source=program.source(copies.wait),
            operand=operand.name if operand is not None else None,
            message=(
                f"the kernel waits for all {copies.count} copies of {size_text(size)} to "
                f"{where}, about {waited:,.0f} cycles, before it works on "
                f"the data of the first, which takes {compute:,.0f} for all of them"
            ),
            remedy=(
                "wait for each copy right before its data are loaded, with a semaphore of its "
                f"own for each, so that the others run meanwhile: about {saved:,.0f} of "
                f"{subject.cycles:,.0f} cycles less"
            ),
            evidence=(
                derived("copies that are waited for together", copies.count),
                derived("bytes of each", size, unit="bytes"),
                derived("cycles in which their bytes move", round(transfer), unit="cycles"),
                derived("cycles of computation beside them", round(compute), unit="cycles"),
                derived("cycles that overlapping them saves", round(saved), unit="cycles"),
            ),
        )


def _in_loops(program: MosaicProgram) -> Iterator[_Together]:
    """Yield copies that one loop starts, another waits for, and a third one works on."""
    for start in program.named("tpu.enqueue_dma"):
        value, place = target_value(start), target_of(program, start)
        around = program.loops_around(start.line)
        if not value or place is None or not around or not is_into_vmem(start):
            continue
        trips = around[0].trips
        if trips is None or trips < MIN_COPIES:
            continue
        if not has_own_place(program, around[0], value, start.line):
            continue
        for wait, waited in _waits(program, start, place.memory):
            loops = program.loops_around(wait.line)
            used = _loop_of_loads(program, place.memory, wait.line, trips)
            is_apart = bool(loops) and loops[0].line != around[0].line and loops[0].trips == trips
            if not is_apart or _fixed(place, around[0]) != _fixed(waited, loops[0]):
                continue  # such as a wait for what an earlier step has started
            if used is not None and wait.line not in used:
                yield _Together(start=start, wait=wait, memory=place.memory, count=trips, loop=used)
                break


def _fixed(place: CopyPlace, loop: ProgramLoop) -> list[int | str]:
    """Return the indices of a place other than a loop's counter, such as that of a slot."""
    return [index for index in place.indices if index != f"{loop.counter}@{loop.line}"]


def _unrolled(program: MosaicProgram) -> Iterator[_Together]:
    """Yield copies to several constant places, waited for one after another."""
    starts: dict[str, dict[tuple[int | str, ...], ProgramOperation]] = {}
    for start in program.named("tpu.enqueue_dma"):
        place = target_of(program, start)
        if place is None or not is_into_vmem(start) or program.is_conditional(start.line):
            continue
        starts.setdefault(place.memory, {})[place.indices] = start
    for memory, placed in starts.items():
        first = min(placed.values(), key=lambda operation: operation.line)
        last = max(placed.values(), key=lambda operation: operation.line)
        waits = list(_waits(program, last, memory))
        is_constant = all(isinstance(indices[0], int) for indices in placed if indices)
        if len(placed) < MIN_COPIES or not is_constant:
            continue
        if {place.indices for _, place in waits} != set(placed):
            continue
        heads = {indices[0] for indices in placed if indices}
        loaded = {
            program.constant(index_values(o)[0], o.line)
            for o in _loads(program, memory)
            if index_values(o)
        }
        if len(heads) == len(placed) and loaded == heads:
            yield _Together(
                start=first, wait=waits[0][0], memory=memory, count=len(placed), loop=None
            )


def _waits(
    program: MosaicProgram, start: ProgramOperation, memory: str
) -> Iterator[tuple[ProgramOperation, CopyPlace]]:
    """Yield waits for copies to a buffer, and their targets, that follow a start.

    There is no vector work in between.
    """
    for operation in program.operations:
        if operation.line <= start.line:
            continue
        if "vector<" in operation.text or operation.name == "scf.if":
            return
        place = waited_target(program, operation) if operation.name in WAITS else None
        if place is not None and place.memory == memory:
            yield operation, place


def _loads(program: MosaicProgram, memory: str) -> list[ProgramOperation]:
    return [
        o
        for o in program.named(*LOADS)
        if "vector<" in o.text and memory_of(program, o) == memory and program.users(o)
    ]


def _loop_of_loads(
    program: MosaicProgram, memory: str, line: int, trips: int
) -> ProgramLoop | None:
    """Return the loop after a line that loads one place of a buffer in each iteration."""
    loads = _loads(program, memory)
    for loop in program.loops:
        if loop.line < line or loop.trips != trips or not loads:
            continue
        places = [indices_of(program, loop, load) for load in loads if load.line in loop]
        if len(places) == len(loads) and all(p and p[0][0] for p in places):
            return loop
    return None


def _is_only_for(program: MosaicProgram, copies: _Together) -> bool:
    """Return whether the waits and the work are in the same region, so that each run does both."""
    around = program.operations_around(copies.start.line)
    outer = around[1:] if copies.loop is not None else around
    waiting = program.operations_around(copies.wait.line)
    return (waiting[1:] if copies.loop is not None else waiting) == outer


KIND = AdviceKind(
    name="wait-for-all",
    title="Copies that are all waited for before the first is used",
    condition=(
        f"The kernel starts at least {MIN_COPIES} copies to places of one buffer, waits for all of "
        "them, and then works on the data of one after another; to wait for each by itself would "
        f"save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Wait for each copy right before its data are loaded.",
    rule=advise_wait_for_all,
)
