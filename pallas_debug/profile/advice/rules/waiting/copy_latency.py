"""Advice: a pipeline within a kernel copies so little at a time that it mostly waits."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, applies, derived
from pallas_debug.profile.advice.pipelines import idle_bundles, latency_of, size_text
from pallas_debug.profile.advice.program import MosaicProgram, ProgramLoop
from pallas_debug.profile.advice.rules.copying.places import copy_size, is_regular
from pallas_debug.profile.advice.rules.copying.round_trip import advise_round_trip
from pallas_debug.profile.advice.rules.copying.small_copies import advise_small_copies
from pallas_debug.profile.advice.rules.waiting.copy_wait import advise_copy_wait
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_TRIPS = 8
"""Minimum iterations of the pipeline."""

LEFT_TRIPS = 4
"""Minimum iterations that must remain with larger blocks, so that copies overlap."""

MIN_WAITING = 0.5
"""Minimum share of the kernel's cycles spent waiting for copies."""

MIN_GAIN = 0.25
"""Minimum share of the kernel's cycles that larger blocks save."""


def advise_copy_latency(subject: AdviceSubject) -> Iterator[Advice]:
    program, step, rate = subject.program, subject.step, subject.bytes_per_cycle
    points = subject.core_points or 1
    if step is None or not rate or not subject.cycles or not subject.vmem_limit:
        return
    waiting = subject.cycles - step.compute * points
    if waiting < MIN_WAITING * subject.cycles:
        return
    if applies(subject, advise_copy_wait, advise_round_trip, advise_small_copies):
        return
    for loop in program.loops:
        starts = [
            o
            for o in program.named("tpu.enqueue_dma")
            if program.loops_around(o.line)[:1] == (loop,)
        ]
        sizes = [copy_size(o) for o in starts]
        times = subject.times(starts[0].line) if starts else None
        if not loop.trips or loop.trips < MIN_TRIPS or not times or None in sizes:
            continue
        if not all(is_regular(program, o) for o in starts):
            continue
        size, count = sum(s or 0 for s in sizes), times * points
        transfer = size / rate
        # These copies are most of the traffic, and transfers take at most half of the latency.
        if 2 * size * count < step.copies * points * rate or 2 * transfer > subject.latency:
            continue
        compute = step.compute * points / count
        factor = _factor(subject, loop, size, rate)
        fixed = _fixed(subject, loop, count, compute)
        larger = fixed + (compute - fixed) * factor
        running = max(larger, transfer * factor)
        each = max(running, (subject.latency + transfer * factor + larger) / 2)
        cycles = each * count / factor + subject.latency
        if factor < 2 or cycles > (1 - MIN_GAIN) * subject.cycles:
            continue
        yield KIND.advice(
            source=program.source(starts[0]) or _around(program, loop) or subject.kernel.source,
            message=(
                f"each of the {loop.trips:,} iterations of a pipeline moves "
                f"{size_text(size)}, which takes {transfer:,.0f} cycles, but waits "
                f"{waiting / count:,.0f}, because a copy takes {subject.latency:,.0f} to "
                "arrive"
            ),
            remedy=(
                f"use blocks {factor} times as large in this pipeline: "
                f"{loop.trips // factor:,} iterations of {size_text(size * factor)}, in about "
                f"{cycles:,.0f} cycles"
            ),
            evidence=(
                derived("iterations", loop.trips),
                derived("bytes that each moves", size, unit="bytes"),
                derived("cycles of these bytes", round(transfer), unit="cycles"),
                derived("cycles that each waits", round(waiting / count), "on average", "cycles"),
                derived("cycles before a copy arrives", subject.latency, unit="cycles"),
                derived("estimated cycles", round(subject.cycles), unit="cycles"),
                derived("estimated cycles with larger blocks", round(cycles), unit="cycles"),
            ),
        )


def _fixed(subject: AdviceSubject, loop: ProgramLoop, count: float, compute: float) -> float:
    """Return the cycles of an iteration that do not grow with its blocks.

    Args:
      count: total number of iterations.
      compute: compute cycles of an iteration.
    """
    idle = idle_bundles(subject, count)
    if any(other.line in loop for other in subject.program.loops):
        return idle
    latency = latency_of(subject, count, compute, idle)
    return idle + (latency.cycles if latency is not None else 0.0)


def _factor(subject: AdviceSubject, loop: ProgramLoop, size: int, rate: float) -> int:
    """Return the factor by which larger blocks hide the latency, fit in VMEM, and still overlap."""
    # Each block has two buffers; the kernel's VMEM already includes those of the current blocks.
    room = (subject.vmem_limit or 0) - (subject.vmem or 0) + 2 * size
    factor = 1
    while (
        factor * size / rate < subject.latency
        and 2 * 2 * factor * size <= room
        and (loop.trips or 0) // (2 * factor) >= LEFT_TRIPS
    ):
        factor *= 2
    return factor


def _around(program: MosaicProgram, loop: ProgramLoop) -> SourceLine | None:
    """Return the line of the innermost operation around a loop that has one: `emit_pipeline`."""
    for operation in program.operations_around(loop.line):
        source = program.source(operation)
        if source is not None:
            return source
    return None


KIND = AdviceKind(
    name="copy-latency",
    title="A pipeline with copies that are too small",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations, such as that of `emit_pipeline`, starts "
        "copies whose transfer takes less than half of the time until they arrive; at least "
        f"{MIN_WAITING:.0%} of the estimated cycles are waits, and larger blocks would save at "
        f"least {MIN_GAIN:.0%}."
    ),
    remedy="Use larger blocks in the pipeline.",
    rule=advise_copy_latency,
)
