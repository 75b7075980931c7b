"""Advice: the kernel waits for a copy that it has just started."""

from __future__ import annotations

import re

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.program import LOADS, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.copying.pipelines import size_text
from pallas_debug.profile.advice.rules.copying.small_copies import advise_small_copies, copy_size
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.core.copies import direction_of
from pallas_debug.profile.units import is_copy

MIN_GAIN = 0.15
"""Minimum share of the kernel's cycles that overlapping the copies would save."""

MIN_COPIES = 4
"""Minimum number of such copies."""

_START = re.compile(r"target_semaphore\((?P<value>%[\w$.-]+)")
_WAIT = re.compile(r"semaphore\((?P<value>%[\w$.-]+)")
_SOURCE = re.compile(r"source\((?P<value>%[\w$.-]+)")
_TARGET = re.compile(r"target\(%[\w$.-]+ : (?P<type>[^()]*)\)")
_VIEWS = ("tpu.memref_slice", "tpu.memref_squeeze", "memref.subview")
_WAITS = ("tpu.wait_dma2", "tpu.wait_dma")

Place = tuple[str, tuple[int | str, ...]]
"""A semaphore: the parameter that it belongs to, and the indices into that."""


def advise_copy_wait(subject: AdviceSubject) -> tuple[Advice, ...]:
    program, rate = subject.program, subject.bytes_per_cycle
    if program is None or not rate or not subject.cycles or subject.step is None:
        return ()
    small = {advice.source for advice in advise_small_copies(subject)}
    found = []
    for start in program.named("tpu.enqueue_dma"):
        source = program.source(start)
        size = copy_size(start)
        if source in small or size is None or not _is_waited_for(program, start):
            continue
        if not _can_be_prefetched(program, start):
            continue
        direction = _direction(start)
        copies = [
            p
            for p in subject.at(source)
            if is_copy(p.opcode) and direction_of(p.instruction, subject.spaces) == direction
        ]
        count = sum(p.weight for p in copies[:1])
        if len(copies) != 1 or count < MIN_COPIES:
            continue  # never started, as for an operand in VMEM, or at several places
        transfer = size / rate
        copy = subject.latency + transfer
        compute = _compute(subject, copies[0], count)
        overlapped = max(transfer, compute, (copy + compute) / 2)
        saved = (copy + compute - overlapped) * count
        if saved < MIN_GAIN * subject.cycles:
            continue
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                message=(
                    f"nothing runs beside this copy of {size_text(size)}, as the kernel waits for "
                    f"it as soon as it is started: about {copy:.0f} cycles, {count:,.0f} times, "
                    f"beside {compute:.0f} of computation each"
                ),
                remedy=(
                    "start the copy for the next iteration before the work on this one, into a "
                    "second buffer with a semaphore of its own, and wait for the one that was "
                    "started an iteration ago; a BlockSpec does that by itself"
                    if direction == "hbm_to_vmem"
                    else "wait for the copy only before its buffer is written again, with two "
                    "buffers and two semaphores; a BlockSpec does that by itself"
                ),
                evidence=(
                    counted("copies that are started here", round(count)),
                    derived("bytes of each", size, unit="bytes"),
                    derived("cycles of each, with its latency", round(copy), unit="cycles"),
                    derived("cycles of computation beside each", round(compute), unit="cycles"),
                    derived("cycles that overlapping them saves", round(saved), unit="cycles"),
                ),
            )
        )
    return tuple(found)


def _direction(start: ProgramOperation) -> str:
    """`hbm_to_vmem` for a copy into VMEM, else `vmem_to_hbm`."""
    target = _TARGET.search(start.text)
    return "hbm_to_vmem" if target and "<vmem>" in target["type"] else "vmem_to_hbm"


def _is_waited_for(program: MosaicProgram, start: ProgramOperation) -> bool:
    """Whether the wait for a copy follows without any work on vectors in between."""
    semaphore = _START.search(start.text)
    place = _place(program, semaphore["value"], start.line) if semaphore else None
    if place is None:
        return False
    for operation in program.operations_after(start.line):
        if operation.name in _WAITS:
            waited = _WAIT.search(operation.text)
            if waited and _place(program, waited["value"], operation.line) == place:
                return True
        elif "vector<" in operation.text or operation.name.startswith("scf."):
            return False
    return False


def _place(program: MosaicProgram, value: str, line: int) -> Place | None:
    """Place of a semaphore; None if unknown."""
    indices: list[int | str] = []
    operation = program.producer(value, line)
    while operation is not None:
        if operation.name not in _VIEWS or not operation.operands or len(indices) > len(_VIEWS):
            return None
        for index in operation.operands[1:]:
            constant = program.constant(index, operation.line)
            indices.append(index if constant is None else constant)
        value = operation.operands[0]
        operation = program.producer(value, operation.line)
    return value, tuple(indices)


def _can_be_prefetched(program: MosaicProgram, start: ProgramOperation) -> bool:
    """Whether it is known an iteration ahead what is copied: numbers in SMEM are."""
    source = _SOURCE.search(start.text)
    sources = program.sources_of(source["value"], start.line) if source else None
    if sources is None:
        return False
    if any(o.name in LOADS and ("vector<" in o.text or "smem" not in o.text) for o in sources):
        return False
    carried = {name for loop in program.loops_around(start.line) for name in loop.carried}
    return not any(carried.intersection(o.operands) for o in sources)


def _compute(subject: AdviceSubject, copy: PlacedInstruction, count: float) -> float:
    """Cycles of computation beside one copy: of its loop's iteration, or of the grid step."""
    loop = subject.schedule.loop_at(copy.bundle)
    if loop is None or subject.is_of_grid(loop) or not subject.executions:
        points = subject.core_points or 1
        return (subject.step.compute if subject.step is not None else 0.0) * points / count
    return sum(subject.executions[loop.start : loop.stop]) / count


KIND = AdviceKind(
    name="copy-wait",
    title="A copy that nothing overlaps with",
    condition=(
        "The kernel starts a copy and waits for it, with no work on vectors in between; a second "
        f"buffer would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Start the copy for the next iteration before the work on this one, with two buffers.",
    rule=advise_copy_wait,
)
