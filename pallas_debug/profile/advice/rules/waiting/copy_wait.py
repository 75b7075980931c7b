"""Advice: the kernel waits for a copy that it has just started."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.pipelines import size_text
from pallas_debug.profile.advice.program import (
    LOADS,
    MosaicProgram,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.copying.places import (
    WAITS,
    copy_size,
    has_own_place,
    instruction_of,
    is_into_vmem,
    is_waited_for,
    one_memory,
    source_of,
    source_value,
    target_of,
    target_value,
    varies,
    waited_target,
)
from pallas_debug.profile.advice.rules.copying.small_copies import advise_small_copies
from pallas_debug.profile.advice.rules.row_loop import index_values, memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.core.copies import direction_of
from pallas_debug.profile.units import is_copy

MIN_GAIN = 0.15
"""Minimum share of the kernel's cycles that overlapping the copies would save."""

CHOOSING = 24
"""Cycles to choose one of two buffers, and to test for the last iteration; compiled kernels take
12 to 22."""

MIN_COPIES = 4
"""Minimum number of times that the copy runs."""


def advise_copy_wait(subject: AdviceSubject) -> Iterator[Advice]:
    program, rate = subject.program, subject.bytes_per_cycle
    if not rate or not subject.cycles or subject.step is None:
        return
    small = {advice.source for advice in advise_small_copies(subject)}
    for start in program.named("tpu.enqueue_dma"):
        source = program.source(start)
        size = copy_size(start)
        if source in small or size is None or not is_waited_for(program, start):
            continue
        if not _can_be_prefetched(subject, start) or _is_of_both(subject, start):
            continue
        copied = instruction_of(subject, start)
        if copied is None or copied.weight < MIN_COPIES:
            continue  # never started, or started in several places
        count, is_fetch = copied.weight, is_into_vmem(start)
        transfer = size / rate
        copy = (subject.latency if is_fetch else subject.write_latency) + transfer
        compute = _compute(subject, copied, count)
        together = _started_together(subject, start)
        # With two buffers in turn, two iterations take at least one copy and one computation.
        pairs = 0.0 if together else (copy + compute) / 2
        overlapped = max(transfer, compute, pairs)
        saved = (copy + compute - overlapped - CHOOSING) * count
        if saved < MIN_GAIN * subject.cycles:
            continue
        remedy = together or _of_the_other_slot(subject, start) or (_AHEAD if is_fetch else _LATER)
        yield _advice(subject, start, remedy, count=count, copy=copy, compute=compute, saved=saved)
    yield from _unrolled(subject, rate)


_AHEAD = (
    "start the copy for the next iteration before the work on this one, into a second buffer with "
    "its own semaphore, and wait for the one that was started in the previous iteration; a "
    "BlockSpec does this automatically"
)
_LATER = (
    "wait for the copy only before its buffer is written again, with two buffers and two "
    "semaphores; a BlockSpec does this automatically"
)


def _advice(
    subject: AdviceSubject,
    start: ProgramOperation,
    remedy: str,
    *,
    count: float,
    copy: float,
    compute: float,
    saved: float,
) -> Advice:
    size = copy_size(start) or 0
    return KIND.advice(
        source=subject.program.source(start),
        message=(
            f"nothing overlaps with this copy of {size_text(size)}, because the kernel "
            f"waits for it as soon as it is started: about {copy:.0f} cycles, "
            f"{count:,.0f} times, next to {compute:.0f} of computation each"
        ),
        remedy=remedy,
        evidence=(
            counted("copies that are started here", round(count)),
            derived("bytes of each", size, unit="bytes"),
            derived("cycles of each, with its latency", round(copy), unit="cycles"),
            derived("cycles of computation beside each", round(compute), unit="cycles"),
            derived("cycles that overlapping them saves", round(saved), unit="cycles"),
        ),
    )


def _unrolled(subject: AdviceSubject, rate: float) -> Iterator[Advice]:
    """Yield advice on fetches by one line, unrolled, each to a place of its own in one buffer."""
    program = subject.program
    found: dict[tuple[SourceLine, str], dict[int | str, ProgramOperation]] = defaultdict(dict)
    for start in program.named("tpu.enqueue_dma"):
        source, place = program.source(start), target_of(program, start)
        if source is None or place is None or not place.indices or not is_into_vmem(start):
            continue
        if copy_size(start) is not None and _is_alone(program, start):
            found[source, place.memory][place.indices[0]] = start
    for (source, memory), starts in found.items():
        first, *others = starts.values()
        around = program.operations_around(first.line)
        weights = [
            p.weight
            for p in subject.at(source)
            if is_copy(p.opcode) and direction_of(p.instruction, subject.spaces) == "hbm_to_vmem"
        ]
        if len(starts) < MIN_COPIES or len(weights) != len(starts) or len(set(weights)) != 1:
            continue  # compiled otherwise than as one copy for each
        at = sorted(index for index in starts if isinstance(index, int))
        apart = min((b - a for a, b in itertools.pairwise(at)), default=0)
        if len(at) < len(starts) or apart < _extent(program, first):
            continue  # they may overlap
        if any(
            program.operations_around(o.line) != around or copy_size(o) != copy_size(first)
            for o in others
        ):
            continue
        if any(
            not _can_be_prefetched(subject, o) or _is_of_both(subject, o) for o in starts.values()
        ):
            continue
        runs, count = weights[0], sum(weights)
        transfer = (copy_size(first) or 0) / rate
        compute = (subject.step.compute if subject.step is not None else 0.0) / count
        compute *= subject.core_points or 1
        copy = subject.latency + transfer
        saved = count * (copy + compute - max(transfer, compute)) - runs * subject.latency
        if not runs or saved < MIN_GAIN * (subject.cycles or 0):
            continue
        operand = subject.operand(memory)
        where = operand.name if operand is not None else "the buffer"
        remedy = (
            f"start all {len(starts)} copies first, since each has its own place in {where}, and "
            "wait for all of them before their data are loaded"
        )
        yield _advice(subject, first, remedy, count=count, copy=copy, compute=compute, saved=saved)


def _extent(program: MosaicProgram, start: ProgramOperation) -> int:
    """Return how many entries of the first dimension the target of a copy spans."""
    value = target_value(start)
    view = program.producer(value, start.line) if value else None
    shape = shape_of(view.text) if view is not None else None
    if view is None or view.name == "tpu.memref_squeeze" or shape is None:
        return 1
    return shape[0][0] if shape[0] else 1


def _is_alone(program: MosaicProgram, start: ProgramOperation) -> bool:
    """Return whether the program waits for a copy before it starts another one."""
    if not is_waited_for(program, start):
        return False
    following = (
        o for o in program.operations_after(start.line) if o.name in (*WAITS, "tpu.enqueue_dma")
    )
    wait = next(following, None)
    if wait is None or wait.name not in WAITS:
        return False
    return waited_target(program, wait) == target_of(program, start)


def _can_be_prefetched(subject: AdviceSubject, start: ProgramOperation) -> bool:
    """Return whether the source of a copy is known an iteration ahead, as numbers in SMEM are."""
    program, value = subject.program, source_value(start)
    sources = program.sources_of(value, start.line) if value else None
    if sources is None:
        return False
    if any(o.name in LOADS and ("vector<" in o.text or "smem" not in o.text) for o in sources):
        return False
    carried = {name for loop in program.loops_around(start.line) for name in loop.carried}
    return not any(carried.intersection(o.operands) for o in sources)


def _is_of_both(subject: AdviceSubject, start: ProgramOperation) -> bool:
    """Return whether the kernel also copies the other way, so that copies may depend on others.

    A fetch may need data that an earlier iteration wrote back. It does not if each iteration
    fetches and writes back a place of its own.
    """
    program = subject.program
    is_fetch = is_into_vmem(start)
    own, other = (source_of, target_of) if is_fetch else (target_of, source_of)
    place = own(program, start)
    value = source_value(start) if is_fetch else target_value(start)
    if place is None or value is None:
        return True
    memory = one_memory(subject, place.memory)
    is_own = bool(varies(subject, start, value))
    for operation in program.named("tpu.enqueue_dma"):
        against = other(program, operation)
        if against is None:
            return True
        is_other = not is_own or against.indices != place.indices
        if is_other and one_memory(subject, against.memory) == memory:
            return True
    return False


def _started_together(subject: AdviceSubject, start: ProgramOperation) -> str:
    """Return the remedy for copies in a loop that each have their own place; empty for others."""
    program, is_fetch = subject.program, is_into_vmem(start)
    loops = program.loops_around(start.line)
    value = target_value(start) if is_fetch else source_value(start)
    place = target_of(program, start) if is_fetch else source_of(program, start)
    if not loops or not value or not has_own_place(program, loops[0], value, start.line):
        return ""
    operand = subject.operand(place.memory) if place is not None else None
    where = operand.name if operand is not None else "the buffer"
    trips = f"all {loops[0].trips:,}" if loops[0].trips is not None else "all"
    if not is_fetch:
        return (
            f"wait for the copies of {trips} iterations in a loop of its own after this one, as "
            f"each has its own place in {where}"
        )
    return (
        f"start the copies of {trips} iterations in a separate loop, since each has its own "
        f"place in {where}, and wait for them in a second loop"
    )


def _of_the_other_slot(subject: AdviceSubject, start: ProgramOperation) -> str:
    """Return the remedy for a copy to a slot that the iteration does not use; empty for others."""
    program = subject.program
    place = target_of(program, start)
    if place is None or not is_into_vmem(start):
        return ""
    slot = next(iter(place.indices), None)
    for loop in program.loops_around(start.line)[:1]:
        loads = [
            o
            for o in program.named(*LOADS)
            if o.line in loop and "vector<" in o.text and memory_of(program, o) == place.memory
        ]
        used = {program.identity(index_values(o)[0], o.line) for o in loads if index_values(o)}
        if not loads or not isinstance(slot, str) or slot in used:
            return ""
        operand = subject.operand(place.memory)
        return (
            "wait for the copy in the next iteration, before its data are loaded: this one works "
            f"on another slot of {operand.name if operand is not None else 'the buffer'}; or let "
            "a BlockSpec do this automatically"
        )
    return ""


def _compute(subject: AdviceSubject, copy: PlacedInstruction, count: float) -> float:
    """Return the compute cycles per copy: those of its loop's iteration or of the grid step."""
    loop = subject.schedule.loop_at(copy.bundle)
    if loop is None or subject.is_of_grid(loop) or not subject.executions:
        points = subject.core_points or 1
        return (subject.step.compute if subject.step is not None else 0.0) * points / count
    inside = range(loop.start, loop.stop)
    delays = subject.schedule.delays
    return sum(subject.executions[at] * (1 + delays[at]) for at in inside) / count


KIND = AdviceKind(
    name="copy-wait",
    title="A copy without overlap",
    condition=(
        "The kernel starts a copy and waits for it without vector work in between; a second "
        f"buffer would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Start the copy for the next iteration before the work on this one, with two buffers.",
    rule=advise_copy_wait,
)
