"""Advice: a loop starts copies that take longer to start than to run."""

from __future__ import annotations

import math
import re

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.program import MosaicProgram, ProgramOperation, shape_of
from pallas_debug.profile.advice.subject import AdviceSubject, selected
from pallas_debug.profile.schedule import ScheduledLoop

MIN_TRIPS = 8
"""Minimum copies that the loop starts."""

_SOURCE = re.compile(r"source\((?P<value>%[\w$.-]+)(?: : (?P<type>[^()]*))?\)")
_READS = ("memref.load", "vector.load", "tpu.load", "tpu.vector_load")
_BITS = re.compile(r"[a-z]+(?P<bits>\d{1,3})")


def advise_small_copies(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.bytes_per_cycle is None:
        return ()
    found = []
    for operation in program.named("tpu.enqueue_dma"):
        loops = program.loops_around(operation.line)
        if not loops or loops[0].trips is None or loops[0].trips < MIN_TRIPS:
            continue
        size = copy_size(operation)
        source = program.source(operation)
        at_line = subject.at(source)
        # Within VMEM, a small copy is made by vector loads and stores, which have no line.
        starts = selected(at_line, lambda name: name.startswith("dma."))
        is_started = bool(starts)
        starts = starts or at_line
        loop = subject.loop_of(starts)
        if size is None or loop is None or subject.is_of_grid(loop) or not starts:
            continue
        if not _is_regular(program, operation) or _computes(subject, loop):
            continue
        running = size / subject.bytes_per_cycle
        if loop.size <= running:
            continue
        trips = loops[0].trips
        cycles = max(1, round(running))
        takes = (
            f"to start one takes {loop.size} bundles, while the copy itself takes about {cycles} "
            f"{'cycle' if cycles == 1 else 'cycles'}"
            if is_started
            else f"to make one by loads and stores takes {loop.size} bundles"
        )
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                message=f"a loop starts {trips} copies of {size:,} bytes each; {takes}",
                remedy=(
                    "copy all of it at once: one make_async_copy of the whole slice, from an array "
                    "in which what is copied together lies together"
                ),
                evidence=(
                    derived("copies that the loop starts", trips),
                    derived("bytes of each", size, unit="bytes"),
                    counted("bundles for each", loop.size),
                    derived("cycles that each takes at peak bandwidth", running, unit="cycles"),
                ),
            )
        )
    return tuple(found)


def copy_size(operation: ProgramOperation) -> int | None:
    """Bytes of a copy, from the type of its source."""
    found = _SOURCE.search(operation.text)
    shape = shape_of(found["type"] or "") if found else None
    if shape is None:
        return None
    bits = _BITS.fullmatch(shape[1])
    return math.ceil(math.prod(shape[0]) * int(bits["bits"]) / 8) if bits else None


def _computes(subject: AdviceSubject, loop: ScheduledLoop) -> bool:
    """Whether a loop computes on vectors beside its copies, so that its length is not theirs."""
    return any(
        is_vector_instruction(p.opcode) and not p.opcode.startswith(("vld", "vst"))
        for p in subject.inside(loop)
    )


def _is_regular(program: MosaicProgram, operation: ProgramOperation) -> bool:
    """Whether what is copied follows from counters alone: a table of pages cannot be rearranged."""
    for operand in operation.operands:
        sources = program.sources_of(operand, operation.line)
        if sources is None or any(s.name in _READS for s in sources):
            return False
    return True


KIND = AdviceKind(
    name="small-copies",
    title="Copies that take longer to start than to run",
    condition=(
        f"A loop that does not compute starts at least {MIN_TRIPS} copies at regular places, and "
        "its bundles for each exceed the cycles that the copy takes at peak bandwidth."
    ),
    remedy="Copy the whole slice at once, from an array in which it is contiguous.",
    rule=advise_small_copies,
)
