"""Advice: a buffer is fetched from HBM and written back to the same place in every iteration."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.pipelines import size_text
from pallas_debug.profile.advice.program import ProgramOperation
from pallas_debug.profile.advice.rules.copying.places import (
    copy_size,
    instruction_of,
    is_into_vmem,
    is_waited_for,
    one_memory,
    source_of,
    source_value,
    target_of,
    target_value,
    varies,
)
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_GAIN = 0.15
"""Minimum share of the kernel's cycles that the copies take."""

MIN_TRIPS = 4
"""Minimum number of times that the buffer is fetched."""


def advise_round_trip(subject: AdviceSubject) -> Iterator[Advice]:
    program, rate = subject.program, subject.bytes_per_cycle
    if not rate or not subject.cycles:
        return
    starts = [o for o in program.named("tpu.enqueue_dma") if not program.is_conditional(o.line)]
    for fetch in starts:
        back = next((o for o in starts if _is_round_trip(subject, fetch, o)), None)
        size, source = copy_size(fetch), program.source(fetch)
        place = source_of(program, fetch)
        if back is None or size is None or place is None:
            continue
        copy = instruction_of(subject, fetch)
        if copy is None or copy.weight < MIN_TRIPS:
            continue
        count = copy.weight
        transfer = size / rate
        cycles = 2 * transfer
        cycles += subject.latency if is_waited_for(program, fetch) else 0.0
        cycles += subject.write_latency if is_waited_for(program, back) else 0.0
        saved = cycles * (count - 1)
        if saved < MIN_GAIN * subject.cycles:
            continue
        operand = subject.operand(place.memory)
        name = operand.name if operand is not None else "an array"
        step = "iteration" if program.loops_around(fetch.line) else "grid step"
        yield KIND.advice(
            source=source,
            operand=operand.name if operand is not None else None,
            message=(
                f"each {step} fetches the same {size_text(size)} of {name} from HBM and writes "
                f"them back: about {cycles:,.0f} cycles, {count:,.0f} times"
            ),
            remedy=(
                f"keep them in VMEM: fetch them before the first {step} and write them back "
                "after the last; an output whose index map stays at one block is kept this way"
            ),
            evidence=(
                counted("times that it is fetched", round(count)),
                derived("bytes of each copy", size, unit="bytes"),
                derived("cycles of both copies", round(cycles), unit="cycles"),
                derived("cycles that keeping it in VMEM saves", round(saved), unit="cycles"),
            ),
        )


def _is_round_trip(subject: AdviceSubject, fetch: ProgramOperation, back: ProgramOperation) -> bool:
    """Return whether a copy fetches what another writes back, and neither place ever changes."""
    program = subject.program
    if back.line <= fetch.line or not is_into_vmem(fetch):
        return False
    if program.loops_around(fetch.line) != program.loops_around(back.line):
        return False
    out, into = source_of(program, fetch), target_of(program, fetch)
    buffer, to = source_of(program, back), target_of(program, back)
    if out is None or into is None or buffer is None or to is None:
        return False
    if into != buffer or out.indices != to.indices:
        return False
    if one_memory(subject, out.memory) != one_memory(subject, to.memory):
        return False
    values = (source_value(fetch), target_value(fetch), target_value(back))
    return all(value and varies(subject, fetch, value) is False for value in values)


KIND = AdviceKind(
    name="round-trip",
    title="Data that is moved to HBM and back",
    condition=(
        "Each iteration of a loop, or each grid step, copies a buffer from HBM and back to the "
        f"same place, which takes at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Keep the buffer in VMEM over all iterations, and copy it once.",
    rule=advise_round_trip,
)
