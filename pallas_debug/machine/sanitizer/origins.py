"""Origin of an index: the operand entry, such as scalar prefetch, from which it was computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import made_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.sanitizer import carries
from pallas_debug.machine.threads import ProgramFrame, Thread

MAX_ENTRIES = 3
"""Maximum number of entries that are described one by one."""


def of_index(thread: Thread, error: OutOfBounds, dim: int) -> list[str]:
    """Describe the entries from which an out-of-bounds index was computed: `table[2], which is 9`.

    Args:
      error: error of a load, store or copy in the innermost frame of the thread.
      dim: position in the index.

    Returns:
      The descriptions; empty if there are no such entries, or too many of several tables.
    """
    found = _texts(thread.frames, _of_dimension(error, dim))
    if len(found) <= MAX_ENTRIES:
        return sorted(found)
    tables = {_table_of(text) for text in found}
    if len(tables) > 1:
        return []
    return [found[-1], f"{len(found) - 2} more entries of {tables.pop()}", found[0]]


def tables_of_index(thread: Thread, error: OutOfBounds, dim: int) -> list[str]:
    """Names of operands from whose entries an out-of-bounds index comes; see `of_index`."""
    found = _texts(thread.frames, _of_dimension(error, dim))
    return sorted({_table_of(text) for text in found})


def _table_of(entry: str) -> str:
    return entry.partition("[")[0]


def _of_dimension(error: OutOfBounds, dim: int) -> list[ir.Reg]:
    place = error.place
    if place is None or not place.view or not isinstance(place.view[-1], ir.Index):
        return []
    entries = place.view[-1].entries
    if dim >= len(entries):
        return []
    entry = entries[dim]
    if isinstance(entry, ir.Slice) and (start := _registers(entry.start)):
        return start  # its size may come from a different entry
    return _registers(entry)


def of_view(thread: Thread, place: ir.RefPlace) -> str | None:
    """Describe the entry from which the indices of an access come, if there is only one.

    Args:
      place: place in a step of the innermost frame of the thread.
    """
    if place.is_constant:
        return None
    entries = [e for part in place.view if isinstance(part, ir.Index) for e in part.entries]
    return _of_registers(thread.frames, [reg for entry in entries for reg in _registers(entry)])


def of_sizes(thread: Thread, place: ir.RefPlace) -> str | None:
    """Describe the entry from which the size of a slice comes, as `of_view` does for indices."""
    entries = [e for part in place.view if isinstance(part, ir.Index) for e in part.entries]
    slices = [entry for entry in entries if isinstance(entry, ir.Slice)]
    return _of_registers(thread.frames, [reg for one in slices for reg in _registers(one.size)])


def of_block(frame: ProgramFrame | None, dim: int) -> str | None:
    """Describe the entry from which a block index comes.

    Args:
      frame: frame in which the index map ran.
    """
    if frame is None:
        return None
    return _of_registers([frame], [frame.program.outputs[dim]])


def has_tables(program: ir.KernelProgram) -> bool:
    """Return whether a program loads anything, as an index map does from scalar prefetch."""
    return any(isinstance(step, ir.LoadStep) for step in program.steps)


def is_of_table(program: ir.KernelProgram, number: int) -> bool:
    """Return whether a register of an index map depends on values loaded from scalar prefetch."""
    match step := program.maker(number):
        case None:
            return False
        case ir.LoadStep():
            return True
        case ir.Compute():
            return any(is_of_table(program, reg.number) for reg in step.inputs)
        case _:
            return has_tables(program)


def _of_registers(frames: list[ProgramFrame], wanted: list[ir.Reg]) -> str | None:
    found = _texts(frames, wanted)
    return found[0] if len(found) == 1 else None


def _texts(frames: list[ProgramFrame], wanted: list[ir.Reg]) -> list[str]:
    depth = len(frames) - 1
    found = (text for reg in wanted for text in _sources(frames, depth, reg.number))
    return list(dict.fromkeys(found))


def _sources(frames: list[ProgramFrame], depth: int, number: int) -> Iterator[str]:
    """Yield the entries from which a register of a frame was computed."""
    frame = frames[depth]
    step = frame.program.maker(number)
    if isinstance(step, ir.LoadStep):
        yield from _entry(frame, step)
    elif isinstance(step, ir.Compute):
        for reg in made_of.registers_behind(step, (number,), with_choices=False):
            yield from _sources(frames, depth, reg.number)
    elif isinstance(step, ir.MultipleOf):
        yield from _sources(frames, depth, step.value.number)
    elif isinstance(step, ir.Loop):
        at = next(i for i, reg in enumerate(step.outputs) if reg.number == number)
        if at < len(step.carry):
            done = carries.iterations_of(step, frame)
            yield from _of_carry(frames[: depth + 1], done, step, at)
    elif depth:
        yield from _outside(frames, depth, number)
        loop = frame.caller
        if isinstance(loop, ir.Loop) and frame.stage == "body":
            carry = carries.carry_of(loop, number)
            if carry is not None:
                done = carries.iterations_before(frame, frames[depth - 1])
                yield from _of_carry(frames[:depth], done, loop, carry)


def _of_carry(
    outer: list[ProgramFrame], iterations: list[ProgramFrame], loop: ir.Loop, position: int
) -> Iterator[str]:
    """Yield the entries behind a carried value, those of the last iteration first.

    Args:
      outer: frames up to that of the loop's step.
      iterations: frames of the iterations before the value.
      position: position in the carry.
    """
    if not iterations:
        return
    pending, known = [(len(iterations), position)], set[tuple[int, int]]()
    for count, at in pending:
        if not count:
            yield from _sources(outer, len(outer) - 1, loop.carry[at].number)
            continue
        frame = iterations[count - 1]
        registers = [loop.body.outputs[at].number]
        for number in registers:
            step = frame.program.maker(number)
            carry = carries.carry_of(loop, number) if step is None else None
            if carry is not None and (count - 1, carry) not in known:
                known.add((count - 1, carry))
                pending.append((count - 1, carry))
            elif isinstance(step, ir.Compute):
                behind = made_of.registers_behind(step, (number,), with_choices=False)
                registers += [reg.number for reg in behind if reg.number not in registers]
            elif isinstance(step, ir.MultipleOf):
                registers.append(step.value.number)
            elif isinstance(step, ir.LoadStep):
                yield from _entry(frame, step)
            elif step is None and carry is None:
                yield from _outside([*outer, frame], len(outer), number)


def _outside(frames: list[ProgramFrame], depth: int, number: int) -> Iterator[str]:
    """Yield the entries behind an input of a frame, from the enclosing frame."""
    frame = frames[depth]
    position = next((i for i, reg in enumerate(frame.program.inputs) if reg.number == number), None)
    caller = frame.caller
    if position is None or caller is None:
        return
    given: tuple[ir.Reg, ...] = ()
    if isinstance(caller, (ir.Branch, ir.Scoped)):
        given = caller.inputs
    elif isinstance(caller, ir.WhileLoop) and frame.stage == "condition":
        given = caller.condition_constants
    elif isinstance(caller, ir.Loop):
        given = caller.constants
    if position < len(given):
        # The condition of a loop is a frame next to its body, not inside it.
        yield from _sources(frames, depth - 1, given[position].number)


def _entry(frame: ProgramFrame, step: ir.LoadStep) -> Iterator[str]:
    ref = frame.registers[step.place.ref.number]
    if not isinstance(ref, Ref):
        return
    is_scratch = ref.buffer.kind in ("scratch", "scoped") and ref.buffer.type.space == "smem"
    if ref.buffer.kind not in ("prefetch", "input", "window") and not is_scratch:
        return
    try:
        region = resolve(ref, step.place.view, frame.registers)
    except OutOfBounds:
        return
    at = _position(region)
    if at is not None:
        value = np.asarray(region.buffer.content[at])
        source = _copied_from(region.buffer, at) if is_scratch else None
        origin = "" if source is None else f" and was copied from {source}"
        yield f"{_element(region.buffer, at)}, which is {value}{origin}"


def _element(buffer: MemoryBuffer, at: tuple[int, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(str, at))}]"


def _copied_from(buffer: MemoryBuffer, at: tuple[int, ...]) -> str | None:
    """Return the element from which a copy to SMEM filled this one, if it still has that value."""
    if buffer.filled is None:
        return None
    source, destination = buffer.filled
    if source.index is None or destination.index is None:
        return None
    offsets = []
    for i, entry in zip(at, destination.index, strict=True):
        if isinstance(entry, np.ndarray):
            return None
        if not isinstance(entry, slice):
            if i != entry:
                return None
            continue
        offset, rest = divmod(i - entry.start, entry.step or 1)
        if rest or not entry.start <= i < entry.stop:
            return None
        offsets.append(offset)
    found = []
    for entry in source.index:
        if isinstance(entry, np.ndarray) or (isinstance(entry, slice) and not offsets):
            return None
        if isinstance(entry, slice):
            found.append(entry.start + offsets.pop(0) * (entry.step or 1))
        else:
            found.append(int(entry))
    place = tuple(found)
    if offsets or source.buffer.is_freed:
        return None
    if source.buffer.content[place] != buffer.content[at]:
        return None
    return _element(source.buffer, place)


def _position(region: MemoryRegion) -> tuple[int, ...] | None:
    """Index of the only element of a region; None if there are several."""
    if region.index is None or (region.shape and max(region.shape) != 1):
        return None
    entries = [e.start if isinstance(e, slice) else e for e in region.index]
    if any(isinstance(e, np.ndarray) for e in entries):
        return None
    return tuple(int(e) for e in entries)


def _registers(value: Any) -> list[ir.Reg]:
    if isinstance(value, ir.Reg):
        return [value]
    if isinstance(value, ir.Slice):
        return [reg for part in fields(value) for reg in _registers(getattr(value, part.name))]
    return []
