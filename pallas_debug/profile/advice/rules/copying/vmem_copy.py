"""Advice: data is copied within VMEM instead of being used or stored in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import Operand
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived_share
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.program import (
    LOADS,
    PASSED_ON,
    STORES,
    MosaicProgram,
    ProgramOperation,
)
from pallas_debug.profile.advice.rules.copying.places import (
    WAITS,
    source_of,
    source_value,
    target_of,
    target_value,
)
from pallas_debug.profile.advice.rules.row_loop import memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, selected

MIN_SHARE = 0.15
"""Minimum share of the executed bundles that copy and do no other vector work."""

ALIGNED = 8
"""Rows of a register; a copy that moves rows to the beginning of a register is useful."""

NEAR = 8
"""Maximum bundles between the loop of a copy and the wait for it, which then takes no time."""


@dataclass(frozen=True, kw_only=True)
class _Move:
    """Copy from one memory to another.

    Attributes:
      made_by: operations that copy the data.
      source, target: parameters of the program.
    """

    made_by: tuple[ProgramOperation, ...]
    source: str
    target: str


def advise_vmem_copy(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for move in (*_by_registers(program), *_by_copies(program)):
        source, target = subject.operand(move.source), subject.operand(move.target)
        line = program.source(move.made_by[-1])
        if source is None or target is None or line is None:
            continue
        if any(program.is_conditional(o.line) for o in move.made_by):
            continue  # the copy may be made once and used by several steps
        remedy = _remedy(program, move, source, target)
        if remedy is None:
            continue
        lines = {program.source(o) for o in move.made_by}
        if any(_works(o) and program.source(o) in lines for o in program.operations):
            continue  # the copy's instructions cannot be distinguished from other work
        at_lines = [p for place in lines for p in subject.at(place)]
        moving = _alone(subject, at_lines + _copying_loop(subject, at_lines))
        share = subject.share(moving)
        if share < MIN_SHARE or not any(p.opcode.startswith("vst") for p in moving):
            continue  # the compiler may have eliminated the copy
        yield KIND.advice(
            source=line,
            operand=source.name,
            message=(
                f"{source.name} is copied to {target.name}, both in VMEM: {share:.0%} of the "
                "executed bundles do this and no other vector work".replace("%", " %")
            ),
            remedy=remedy,
            evidence=(
                counted("instructions of the copy in such bundles", len(moving)),
                derived_share("share of the executed bundles", share),
            ),
        )


def _works(operation: ProgramOperation) -> bool:
    """Return whether an operation does vector work other than loads, stores and changes of form."""
    if "vector<" not in operation.text or operation.name in ("vector.broadcast", "arith.constant"):
        return False
    return operation.name not in (*LOADS, *STORES, *PASSED_ON)


def _by_registers(program: MosaicProgram) -> Iterator[_Move]:
    """Yield copies by values that are loaded and stored without any other use."""
    for load in program.named(*LOADS):
        users = program.final_users(load)
        if len(users) != 1 or users[0][0].name not in STORES or "vector<" not in load.text:
            continue
        store = users[0][0]
        source, target = memory_of(program, load), memory_of(program, store)
        if source is None or target is None or source == target:
            continue
        if {source, target} <= set(program.arguments) and _is_same(load, store):
            yield _Move(made_by=(load, store), source=source, target=target)


def _is_same(load: ProgramOperation, store: ProgramOperation) -> bool:
    """Return whether a value is stored with the shape and type with which it was loaded."""
    return load.text.rpartition("vector<")[2].partition(">")[0] in store.text


def _by_copies(program: MosaicProgram) -> Iterator[_Move]:
    """Yield DMA copies between two memories in VMEM of the same chip."""
    for start in program.named("tpu.enqueue_dma"):
        kinds = start.text.count("#tpu.memory_space<vmem>")
        source, target = source_of(program, start), target_of(program, start)
        if source is None or target is None or kinds < 2 or "device_id" in start.text:
            continue
        if not {source.memory, target.memory} <= set(program.arguments):
            continue
        if not all(_is_aligned(program, start, view) for view in (source_value, target_value)):
            continue
        waits = tuple(
            wait
            for wait in program.named(*WAITS)
            if start.line < wait.line and source_value(start) is not None
        )
        yield _Move(made_by=(*waits[:1], start), source=source.memory, target=target.memory)


def _is_aligned(program: MosaicProgram, start: ProgramOperation, of: object) -> bool:
    """Return whether the source or target of a copy starts at the beginning of a register."""
    value = of(start) if callable(of) else None
    if value is None:
        return False
    view = program.producer(value, start.line)
    if view is None:
        return value in program.arguments
    if view.name != "tpu.memref_slice" or view.operands[0] not in program.arguments:
        return False
    for index in view.operands[1:]:
        constant = program.constant(index, view.line)
        made = program.producer(index, view.line)
        if constant is None and (made is None or made.name != "tpu.assume_multiple"):
            return False
        if constant is not None and constant % ALIGNED:
            return False
    return True


def _remedy(program: MosaicProgram, move: _Move, source: Operand, target: Operand) -> str | None:
    """Return how to avoid the copy; None if it may be useful."""
    made_by = {operation.line for operation in move.made_by}
    if target.kind == "scratch" and source.kind == "input":
        if _writes(program, move.source, made_by) or _writes(program, move.target, made_by):
            return None
        return f"remove {target.name}, and read {source.name} instead"
    if source.kind == "scratch" and target.kind == "output":
        others = _uses(program, move.target, made_by)
        reads = [o for o in _uses(program, move.source, made_by) if o.name not in STORES]
        stores = [o for o in _uses(program, move.source, made_by) if o.name in STORES]
        if others or reads or not stores:
            return None
        if any(program.is_conditional(o.line) for o in stores):
            return None
        return f"remove {source.name}, and store to {target.name} instead"
    return None


def _uses(program: MosaicProgram, memory: str, without: set[int]) -> list[ProgramOperation]:
    """Return the operations on a memory, except unused loads."""
    return [
        o
        for o in program.operations
        if memory in o.operands
        and o.line not in without
        and o.name not in WAITS
        and not (o.name in LOADS and not program.users(o))
    ]


def _writes(program: MosaicProgram, memory: str, without: set[int]) -> bool:
    """Return whether operations other than these may write a memory."""
    views = [o for o in program.named("tpu.memref_slice") if o.operands[:1] == (memory,)]
    moves = {o.line for o in program.named("tpu.enqueue_dma") if o.line in without}
    for operation in _uses(program, memory, without):
        if operation.name in LOADS:
            continue
        if operation in views and moves:
            users = program.users(operation)
            if all(u.line in without or u.name in WAITS for u in users):
                continue
        return True
    return False


def _copying_loop(
    subject: AdviceSubject, at_lines: list[PlacedInstruction]
) -> list[PlacedInstruction]:
    """Return the loop of loads and stores to which the compiler lowers a copy, before its wait."""
    waits = [p.bundle for p in at_lines if p.opcode == "dma.done.wait"]
    for loop in subject.schedule.loops:
        if any(0 <= wait - loop.stop < NEAR for wait in waits):
            inside = subject.inside(loop)
            vector = selected(inside, is_vector_instruction)
            if vector and all(p.opcode.startswith(("vld", "vst")) for p in vector):
                return [p for p in inside if p not in at_lines]
    return []


def _alone(
    subject: AdviceSubject, instructions: list[PlacedInstruction]
) -> list[PlacedInstruction]:
    """Return those of the instructions whose bundles contain no other vector instruction."""
    own = {id(placed) for placed in instructions}
    busy = {
        p.bundle
        for p in subject.instructions
        if id(p) not in own and is_vector_instruction(p.opcode)
    }
    return [placed for placed in instructions if placed.bundle not in busy]


KIND = AdviceKind(
    name="vmem-copy",
    title="Data that is copied within VMEM",
    condition=(
        "Each step copies an input to scratch that is only read, or scratch that nothing else "
        f"reads to an output, and at least {MIN_SHARE:.0%} of the executed bundles do this and no "
        "other vector work."
    ),
    remedy="Use the data in place, and store results directly to their destination.",
    rule=advise_vmem_copy,
)
