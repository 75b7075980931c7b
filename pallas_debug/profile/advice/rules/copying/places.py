"""Copies of a program: source, target, size, and whether they vary between iterations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pallas_debug.model import Operand
from pallas_debug.profile.advice.program import (
    LOADS,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.row_loop import affine_index
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.core.copies import direction_of
from pallas_debug.profile.units import is_copy

WAITS = ("tpu.wait_dma2", "tpu.wait_dma")

_START = re.compile(r"target_semaphore\((?P<value>%[\w$.-]+)")
_WAIT = re.compile(r"semaphore\((?P<value>%[\w$.-]+)")
"""Pattern of a wait's semaphore: `semaphore(…)`, or `target_semaphore(…)` with jax 0.12."""

_SOURCE = re.compile(r"(?<!\w)source\((?P<value>%[\w$.-]+)(?: : (?P<type>[^()]*))?\)")
_TARGET = re.compile(r"(?<!\w)target\((?P<value>%[\w$.-]+)(?: : (?P<type>[^()]*))?\)")
_WAITED = re.compile(r"(?<!\w)(?:dst|target)\((?P<value>%[\w$.-]+)")
"""Pattern of the target of the copy that is waited for: `dst(…)`, or `target(…)` with jax 0.12."""

_BITS = re.compile(r"[a-z]+(?P<bits>\d{1,3})")
_VIEWS = ("tpu.memref_slice", "tpu.memref_squeeze", "memref.subview")
_BUFFERS = ("memref.alloca", "tpu.sem_alloc")

MAX_VIEWS = 8
"""Maximum views between the operand of a copy and the underlying memory."""


@dataclass(frozen=True, kw_only=True)
class CopyPlace:
    """Source or target of a copy.

    Attributes:
      memory: parameter or buffer of the program.
      indices: indices into the memory, each a constant or the identity of a value.
    """

    memory: str
    indices: tuple[int | str, ...]


def source_of(program: MosaicProgram, start: ProgramOperation) -> CopyPlace | None:
    """Return the source of a copy; None if unknown."""
    return _matched(program, start, _SOURCE)


def target_of(program: MosaicProgram, start: ProgramOperation) -> CopyPlace | None:
    """Return the target of a copy; None if unknown."""
    return _matched(program, start, _TARGET)


def waited_target(program: MosaicProgram, wait: ProgramOperation) -> CopyPlace | None:
    """Return the target of the copy that is waited for; None if unknown."""
    return _matched(program, wait, _WAITED)


def source_value(start: ProgramOperation) -> str | None:
    """Return the value that denotes the source of a copy."""
    found = _SOURCE.search(start.text)
    return found["value"] if found else None


def target_value(start: ProgramOperation) -> str | None:
    """Return the value that denotes the target of a copy."""
    found = _TARGET.search(start.text)
    return found["value"] if found else None


def copy_size(start: ProgramOperation) -> int | None:
    """Return the size of a copy in bytes, from the type of its source."""
    found = _SOURCE.search(start.text)
    shape = shape_of(found["type"] or "") if found else None
    if shape is None:
        return None
    bits = _BITS.fullmatch(shape[1])
    return math.ceil(math.prod(shape[0]) * int(bits["bits"]) / 8) if bits else None


def is_regular(program: MosaicProgram, start: ProgramOperation) -> bool:
    """Return whether source and target depend only on counters.

    Pages listed in a table are no blocks.
    """
    for value in (source_value(start), target_value(start)):
        sources = program.sources_of(value, start.line) if value else None
        if sources is None or any(s.name in LOADS for s in sources):
            return False
    return True


def instruction_of(subject: AdviceSubject, start: ProgramOperation) -> PlacedInstruction | None:
    """Return the instruction of a copy between HBM and VMEM.

    None if the line has several, or none, as for an operand in VMEM.
    """
    direction = "hbm_to_vmem" if is_into_vmem(start) else "vmem_to_hbm"
    found = [
        p
        for p in subject.at(subject.program.source(start))
        if is_copy(p.opcode) and direction_of(p.instruction, subject.spaces) == direction
    ]
    return found[0] if len(found) == 1 else None


def is_into_vmem(start: ProgramOperation) -> bool:
    found = _TARGET.search(start.text)
    return found is not None and "<vmem>" in (found["type"] or "")


def is_waited_for(program: MosaicProgram, start: ProgramOperation) -> bool:
    """Return whether the program waits for a copy without any vector work in between."""
    place = _matched(program, start, _START)
    if place is None:
        return False
    for operation in program.operations_after(start.line):
        if operation.name in WAITS:
            if _matched(program, operation, _WAIT) == place:
                return True
        elif "vector<" in operation.text or operation.name.startswith("scf."):
            return False
    return False


def one_memory(subject: AdviceSubject, value: str) -> str | Operand:
    """Return the memory of a parameter: for an output that is aliased to an input, the input."""
    operand = subject.operand(value)
    kernel = subject.kernel
    if operand is None:
        return value
    inputs = (*kernel.of_kind("scalar_prefetch"), *kernel.of_kind("input"))
    outputs = kernel.of_kind("output")
    for before, after in kernel.aliases:
        if before < len(inputs) and after < len(outputs) and operand == outputs[after]:
            return inputs[before]
    return operand


def varies(subject: AdviceSubject, start: ProgramOperation, value: str) -> bool | None:
    """Return whether a view moves with the innermost loop around a copy, or else with the grid.

    None if this depends on loaded values, or is not known.
    """
    program = subject.program
    sources = program.sources_of(value, start.line)
    if sources is None or any(s.name in LOADS for s in sources):
        return None
    read = {operand for source in sources for operand in source.operands}
    loops = program.loops_around(start.line)
    if loops:
        return not read.isdisjoint((loops[0].counter, *loops[0].carried))
    inner = [axis for axis, size in enumerate(subject.kernel.grid) if size != 1]
    counters = program.counters
    return bool(inner) and inner[-1] < len(counters) and counters[inner[-1]] in read


def has_own_place(program: MosaicProgram, loop: ProgramLoop, value: str, line: int) -> bool:
    """Return whether each iteration of a loop has its own, disjoint view of the memory.

    Two buffers whose slots alternate between iterations do not count.
    """
    view = program.producer(value, line)
    for _ in range(MAX_VIEWS):
        if view is None or view.name not in _VIEWS or not view.operands:
            return False
        shape = view.shape
        indices = view.operands[1:]
        if view.name != "tpu.memref_squeeze" and shape and len(shape[0]) == len(indices):
            for size, index in zip(shape[0], indices, strict=True):
                place = affine_index(program, loop, index, view.line)
                if place is not None and place[0] and abs(place[0] * (loop.step or 0)) >= size:
                    return True
        view = program.producer(view.operands[0], view.line)
    return False


def _matched(
    program: MosaicProgram, operation: ProgramOperation, pattern: re.Pattern[str]
) -> CopyPlace | None:
    found = pattern.search(operation.text)
    return _place(program, found["value"], operation.line) if found else None


def _place(program: MosaicProgram, value: str, line: int) -> CopyPlace | None:
    indices: list[int | str] = []
    operation = program.producer(value, line)
    views = 0
    while operation is not None and operation.name in _VIEWS and operation.operands:
        views += 1
        if views > len(_VIEWS):
            return None
        for index in operation.operands[1:]:
            constant = program.constant(index, operation.line)
            indices.append(
                program.identity(index, operation.line) if constant is None else constant
            )
        value = operation.operands[0]
        operation = program.producer(value, operation.line)
    if operation is not None and operation.name not in _BUFFERS:
        return None
    return CopyPlace(memory=value, indices=tuple(indices))
