"""Origin of an index: entries of operands, such as scalar prefetch, that it was computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.slices import Follows, InnerSlice, Slicer
from pallas_debug.machine.threads import ProgramFrame, Thread

MAX_ENTRIES = 3
"""Maximum number of entries that are described one by one."""


def of_index(thread: Thread, error: OutOfBounds, dim: int) -> list[str]:
    """Describe the entries from which an out-of-bounds index was computed: `table[2], which is 9`.

    Args:
      error: error of a load, store or copy in the innermost frame of the thread.
      dim: position in the index.

    Returns:
      The descriptions, one for each entry; one for a whole table if a loop has read its entries, or
      if there are many. Empty if there are none.
    """
    tables = _entries(thread.frames, _of_dimension(error, dim))
    is_short = sum(map(len, tables.values())) <= MAX_ENTRIES
    return [
        text
        for table, entries in tables.items()
        for text in (entries if is_short and entries else [f"entries of {table}"])
    ]


def tables_of_index(thread: Thread, error: OutOfBounds, dim: int) -> list[str]:
    """Names of operands from whose entries an out-of-bounds index comes; see `of_index`."""
    return list(_entries(thread.frames, _of_dimension(error, dim)))


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


def _only(tables: Mapping[str, Sequence[str]]) -> str | None:
    entries = [entry for found in tables.values() for entry in found]
    return entries[0] if len(entries) == len(tables) == 1 else None


def _entries(frames: Sequence[ProgramFrame], wanted: Sequence[int]) -> dict[str, list[str]]:
    """Descriptions of the entries behind registers of the innermost frame, by table.

    There are none for a table that a loop has read: the registers of its iterations are gone.
    """
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
    at = _position(region)
    if at is None:
        return None
    buffer = region.buffer
    source = _copied_from(buffer, at) if _is_scratch(buffer) else None
    origin = "" if source is None else f" and was copied from {source}"
    return f"{_element(buffer, at)}, which is {np.asarray(buffer.content[at])}{origin}"


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
