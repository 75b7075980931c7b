"""Advice: a loop starts copies that take longer to start than to run."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.moves import computes
from pallas_debug.profile.advice.rules.copying.places import copy_size, is_regular
from pallas_debug.profile.advice.subject import AdviceSubject, starting

MIN_TRIPS = 8
"""Minimum number of copies that the loop starts."""


def advise_small_copies(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.bytes_per_cycle is None:
        return
    for operation in program.named("tpu.enqueue_dma"):
        loops = program.loops_around(operation.line)
        if not loops or loops[0].trips is None or loops[0].trips < MIN_TRIPS:
            continue
        size = copy_size(operation)
        source = program.source(operation)
        at_line = subject.at(source)
        # Within VMEM, small copies compile to vector loads and stores, which have no line.
        starts = starting(at_line, "dma.")
        is_started = bool(starts)
        starts = starts or at_line
        loop = subject.own_loop_of(starts)
        if size is None or loop is None or not starts:
            continue
        if not is_regular(program, operation):
            continue
        if any(computes(p.opcode) for p in subject.inside(loop)):
            continue  # the length of the loop is not due to copies alone
        running = size / subject.bytes_per_cycle
        if loop.size <= running:
            continue
        trips = loops[0].trips
        cycles = max(1, round(running))
        takes = (
            f"starting one takes {loop.size} bundles, while the copy itself takes about {cycles} "
            f"{'cycle' if cycles == 1 else 'cycles'}"
            if is_started
            else f"copying with loads and stores takes {loop.size} bundles each"
        )
        yield KIND.advice(
            source=source,
            message=f"a loop starts {trips} copies of {size:,} bytes each; {takes}",
            remedy=(
                "copy everything at once: one make_async_copy of the whole slice, from an "
                "array in which it is contiguous"
            ),
            evidence=(
                derived("copies that the loop starts", trips),
                derived("bytes of each", size, unit="bytes"),
                counted("bundles for each", loop.size),
                derived("cycles that each takes at peak bandwidth", running, unit="cycles"),
            ),
        )


KIND = AdviceKind(
    name="small-copies",
    title="Copies that take longer to start than to run",
    condition=(
        f"A loop without computation starts at least {MIN_TRIPS} copies at regular places, and "
        "its bundles for each exceed the cycles that the copy takes at peak bandwidth."
    ),
    remedy="Copy the whole slice at once, from an array in which it is contiguous.",
    rule=advise_small_copies,
)
