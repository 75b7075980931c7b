"""Origin of an index: entries of operands, such as scalar prefetch, that it was computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.facts import element_text
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.slices import Follows, InnerSlice, Slicer
from pallas_debug.machine.threads import ProgramFrame, Thread

MAX_ENTRIES = 3
"""Maximum number of entries that are described one by one."""

Entries = dict[str, list[str]]
"""Descriptions of entries, such as `table[2], which is 9`, by the table that holds them; none for a
table of which a loop has read entries, since the registers of its iterations are gone."""


def of_index(thread: Thread, error: OutOfBounds, dim: int) -> Entries:
    """Entries from which an out-of-bounds index was computed.

    Args:
      error: error of a load, store or copy in the innermost frame of the thread.
      dim: position in the index.
    """
    return _entries(thread.frames, _of_dimension(error, dim))


def text(tables: Entries) -> str:
    """Describe entries one by one, or their tables if there are many."""
    is_short = sum(map(len, tables.values())) <= MAX_ENTRIES
    return ", and from ".join(
        one
        for table, entries in tables.items()
        for one in (entries if is_short and entries else [f"entries of {table}"])
    )


def of_sizes(thread: Thread, place: ir.RefPlace) -> str | None:
    """Describe the entry from which the size of a slice comes, if there is only one.

    Args:
      place: place in a step of the innermost frame of the thread.
    """
    entries = [e for part in place.view if isinstance(part, ir.Index) for e in part.entries]
    sizes = [reg for e in entries if isinstance(e, ir.Slice) for reg in ir.registers(e.size)]
    return _only(_entries(thread.frames, sizes))


def of_block(frame: ProgramFrame | None, dim: int) -> str | None:
    """Describe the entry from which a block index comes, if there is only one.

    Args:
      frame: frame in which the index map ran.
    """
    return None if frame is None else _only(_entries([frame], [frame.program.outputs[dim].number]))


def is_of_table(program: ir.KernelProgram, number: int) -> bool:
    """Return whether a register of an index map depends on values loaded from scalar prefetch."""
    return bool(Slicer(Follows.ALL).behind(program, {number: True}).loads)


def _of_dimension(error: OutOfBounds, dim: int) -> list[int]:
    """Registers from which the position along a dimension comes."""
    place = error.place
    if place is None or not place.view or not isinstance(place.view[-1], ir.Index):
        return []
    entries = place.view[-1].entries
    if dim >= len(entries):
        return []
    entry = entries[dim]
    # The size of a slice may come from a different entry than its start.
    start = [*ir.registers(entry.start)] if isinstance(entry, ir.Slice) else []
    return start or [*ir.registers(entry)]


def _only(tables: Entries) -> str | None:
    entries = [entry for found in tables.values() for entry in found]
    return entries[0] if len(entries) == len(tables) == 1 else None


def _entries(frames: Sequence[ProgramFrame], wanted: Sequence[int]) -> Entries:
    """Entries behind registers of the innermost frame."""
    slicer, registers = Slicer(Follows.VALUES), dict.fromkeys(wanted, True)
    found: dict[str, set[str]] = defaultdict(set)
    read_by_loops: set[str] = set()
    outside = InnerSlice()
    for frame in reversed(frames):
        behind = slicer.behind(frame.program, registers)
        mine = {id(step) for step in frame.program.steps}
        own = [step for step in behind.loads if id(step) in mine]
        for step in own:
            table, entry = _table(frame, step.place.ref.number), _entry(frame, step)
            if table is not None and entry is not None:
                found[table].add(entry)
        loops = [step for step in (*behind.loads, *outside.loads) if id(step) not in mine]
        refs = outside.refs | behind.refs - {step.place.ref.number for step in own}
        if all(map(_is_of_one_entry, loops)):
            read_by_loops.update(t for ref in refs if (t := _table(frame, ref)) is not None)
        if frame.caller is not None:
            outside = slicer.outside(frame, behind.inputs)
            registers = outside.registers
    tables = sorted({*found, *read_by_loops})
    return {name: [] if name in read_by_loops else sorted(found[name]) for name in tables}


def _table(frame: ProgramFrame, number: int) -> str | None:
    """Name of the memory behind a register, if its entries explain an index."""
    ref = frame.registers[number]
    if not isinstance(ref, Ref):
        return None
    is_input = ref.buffer.kind in ("prefetch", "input", "window")
    return ref.buffer.name if is_input or _is_scratch(ref.buffer) else None


def _is_scratch(buffer: MemoryBuffer) -> bool:
    return buffer.kind in ("scratch", "scoped") and buffer.type.space == "smem"


def _is_of_one_entry(step: ir.LoadStep) -> bool:
    index = step.place.view[-1] if step.place.view else None
    return isinstance(index, ir.Index) and not any(
        isinstance(entry, ir.Slice) and entry.size != 1 for entry in index.entries
    )


def _entry(frame: ProgramFrame, step: ir.LoadStep) -> str | None:
    """Describe the entry that a step has loaded; None if it has loaded several."""
    try:
        region = resolve(frame.registers[step.place.ref.number], step.place.view, frame.registers)
    except OutOfBounds:
        return None
    at, buffer = _position(region), region.buffer
    if at is None:
        return None
    source = _copied_from(buffer, at) if _is_scratch(buffer) else None
    origin = "" if source is None else f" and was copied from {source}"
    return f"{element_text(buffer.name, at)}, which is {np.asarray(buffer.content[at])}{origin}"


def _copied_from(buffer: MemoryBuffer, at: tuple[int, ...]) -> str | None:
    """Return the element from which a copy to SMEM filled this one, if it still has that value."""
    if buffer.filled is None or buffer.filled[0].buffer.is_freed or buffer.filled[0].existing:
        return None
    sources, targets = map(MemoryRegion.positions, buffer.filled)
    if sources is None or targets is None:
        return None
    source = buffer.filled[0].buffer
    for flat in sources.ravel()[targets.ravel() == np.ravel_multi_index(at, buffer.content.shape)]:
        place = tuple(int(i) for i in np.unravel_index(flat, source.content.shape))
        if source.content[place] == buffer.content[at]:
            return element_text(source.name, place)
    return None


def _position(region: MemoryRegion) -> tuple[int, ...] | None:
    """Index of the only element of a region; None if there are several."""
    positions = region.positions()
    if positions is None or positions.size != 1:
        return None
    shape = region.buffer.content.shape
    return tuple(int(i) for i in np.unravel_index(int(positions.flat[0]), shape))
