"""Bounds: accesses outside of an array, a mesh or a grid, and where their indices come from.

The origin of an index are the entries of operands, such as scalar prefetch, that it was computed
from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.bounds import CopyOf, MissingBlock, Outside, computed
from pallas_debug.findings.facts import OF_TABLE, array_text, element_text
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.copies import Counter, SizesDiffer
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.places import NoSuchDevice
from pallas_debug.machine.sightings import counter_text, index_text, shape_text, sighting
from pallas_debug.machine.slices import Follows, InnerSlice, Slicer
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import Finding

MAX_ENTRIES = 3
"""Maximum number of entries that are described one by one."""

Entries = dict[str, list[str]]
"""Descriptions of entries, such as `table[2], which is 9`, by the table that holds them; none for a
table of which a loop has read entries, since the registers of its iterations are gone."""


def origin_text(tables: Entries) -> str:
    """Describe entries one by one, or their tables if there are many."""
    is_short = sum(map(len, tables.values())) <= MAX_ENTRIES
    return ", and from ".join(
        one
        for table, entries in tables.items()
        for one in (entries if is_short and entries else [f"entries of {table}"])
    )


def origin_of_sizes(thread: Thread, place: ir.RefPlace) -> str | None:
    """Describe the entry from which the size of a slice comes, if there is only one.

    Args:
      place: place in a step of the innermost frame of the thread.
    """
    entries = [e for part in place.view if isinstance(part, ir.Index) for e in part.entries]
    sizes = [reg for e in entries if isinstance(e, ir.Slice) for reg in ir.registers(e.size)]
    return _only(_entries(thread.frames, sizes))


def origin_of_block(
    frame: ProgramFrame | None, index_map: ir.KernelProgram, dim: int
) -> str | None:
    """Describe the entry from which a block index comes; None if it comes from no table.

    Args:
      frame: frame in which the index map ran.
    """
    output = index_map.outputs[dim].number
    entry = None if frame is None else _only(_entries([frame], [output]))
    is_of_table = bool(Slicer(Follows.ALL).behind(index_map, {output: True}).loads)
    return entry or (OF_TABLE if is_of_table else None)


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


class BoundsObserver(MachineObserver):
    """Reports out-of-bounds indices, and blocks that an array does not have."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._findings: list[Finding] = []
        self._outside: dict[int, tuple[Sighting, dict[str, Any]]] = {}

    def findings(self) -> list[Finding]:
        return self._findings

    def outside_reads(self, *, is_discarded: bool) -> list[Finding]:
        """Return the scalar reads outside their tables, one per line of code.

        Args:
          is_discarded: whether no result depends on the values read.
        """
        return [
            seen.of(Fault.OUT_OF_BOUNDS_READ, is_discarded=is_discarded, **facts)
            for seen, facts in self._outside.values()
        ]

    def reads_outside(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        if id(step) in self._outside:
            seen, facts = self._outside[id(step)]
            self._outside[id(step)] = replace(seen, count=seen.count + 1), facts
        else:
            self._outside[id(step)] = self._access(thread, step, error)

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        window = self._window_of(thread, error)
        if window is not None and window.block is not None and not window.has(window.block):
            self.block_leaves(thread, window, window.block)
            return
        seen, facts = self._access(thread, step, error)
        writes = _writes(step, error)
        kind = Fault.OUT_OF_BOUNDS_WRITE if writes else Fault.OUT_OF_BOUNDS_READ
        self._findings.append(seen.of(kind, **facts))

    def _access(
        self, thread: Thread, step: ir.MachineStep, error: OutOfBounds
    ) -> tuple[Sighting, dict[str, Any]]:
        """Return a sighting of the access, and the facts of its finding."""
        buffer, outside = error.buffer, _first_outside(error.index, error.shape)
        is_of_map, name = bool(thread.index_map_of), buffer.name
        if error.place is not None and not is_of_map:
            name = thread.ref(error.place).name
        seen = sighting(
            self._launch,
            thread,
            step,
            operand=name,
            index=index_text(name + error.recast, error.index),
            shape=shape_text(buffer, error.shape),
        )
        if is_of_map:
            return seen, {"map_of": thread.index_map_of, "slice": outside}
        tables = _entries(thread.frames, _of_dimension(error, outside.dim))
        if tables:
            seen = seen.with_values({"index from": ", ".join(tables)})
        copy, is_rounded = None, False
        if isinstance(step, ir.CopyStart):
            copy = CopyOf(thread.ref(step.source).name, thread.ref(step.destination).name)
            is_within = outside.size is not None and 0 <= outside.start < outside.bound
            is_rounded = step.of_pipeline and is_within
        line = self._launch.index_lines.of(step.site.line, outside.dim)
        return seen, {
            "copy": copy,
            "slice": outside,
            "origin": origin_text(tables) or computed(line, step.site.line),
            "is_rounded": is_rounded,
            "is_masked": self._launch.is_gpu and getattr(step, "mask", None) is not None,
            "is_ragged": self._window_of(thread, error) is not None,
        }

    def _window_of(self, thread: Thread, error: OutOfBounds) -> Window | None:
        """The operand of a GPU's kernel whose block does not fit into its array."""
        if not self._launch.is_gpu or error.place is None:
            return None
        window = thread.walk.pointed(thread.ref(error.place).name)
        is_of_array = error.shape == error.buffer.content.shape
        return window if window is not None and is_of_array else None

    def leaves_mesh(self, thread: Thread, step: ir.MachineStep, error: NoSuchDevice) -> None:
        copy = None
        if isinstance(step, ir.CopyStart):
            copy = CopyOf(thread.ref(step.source).name, thread.ref(step.destination).name)
            operand = copy.destination
        else:
            assert isinstance(step, ir.SemaphoreSignal)
            operand = counter_text(Counter(thread.ref(step.place).buffer, ()))
        self._findings.append(
            sighting(self._launch, thread, step, operand=operand).of(
                Fault.OUT_OF_BOUNDS_WRITE,
                copy=copy,
                signal=None if copy else operand,
                unit="core" if error.is_core else "device",
                value=error.value,
                axis=error.axis,
                total=error.count,
                last=error.count - 1,
            )
        )

    def sizes_differ(self, thread: Thread, step: ir.MachineStep, error: SizesDiffer) -> None:
        assert isinstance(step, ir.CopyStart)
        names = thread.ref(step.source).name, thread.ref(step.destination).name
        regions = error.source, error.destination
        pairs = zip(error.source.shape, error.destination.shape, strict=False)
        dim = next((i for i, (one, other) in enumerate(pairs) if one != other), 0)
        taken, room = (region.shape[dim] if region.shape else 1 for region in regions)
        entries = [origin_of_sizes(thread, place) for place in (step.source, step.destination)]
        slices = (
            index_text(name, region.index or ())
            for name, region in zip(names, regions, strict=True)
        )
        self._findings.append(
            sighting(self._launch, thread, step, operand=names[1]).of(
                Fault.OUT_OF_BOUNDS_WRITE if taken > room else Fault.OUT_OF_BOUNDS_READ,
                copy=CopyOf(*slices),
                dim=dim,
                taken=taken,
                room=room,
                origin=", and from ".join(entry for entry in entries if entry is not None),
            )
        )

    def block_leaves(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        spec, shape = window.spec, window.array.content.shape
        counts = [-(-n // unit) for n, unit in zip(shape, spec.unit, strict=True)]
        dim = next((i for i, n in enumerate(block) if not 0 <= n < counts[i]), 0)
        seen = sighting(
            self._launch,
            thread,
            operand=window.operand.name,
            shape=shape_text(window.array),
            source=window.operand.line,
        )
        self._findings.append(
            seen.of(
                Fault.BLOCK_OUT_OF_BOUNDS,
                block=MissingBlock(
                    dim=dim,
                    value=block[dim],
                    last=counts[dim] - 1,
                    is_element=spec.unit[dim] != spec.sizes[dim],
                ),
                array=array_text(str(window.array.type.dtype), shape),
                origin=origin_of_block(window.failed, spec.index_map, dim),
            )
        )


def _first_outside(index: Sequence[Entry], shape: Sequence[int]) -> Outside:
    """Return the first entry of an index that is out of bounds."""
    for dim, (entry, bound) in enumerate(zip(index, shape, strict=True)):
        if isinstance(entry, slice):
            stride = entry.step or 1
            count = -(-(entry.stop - entry.start) // stride) if stride else 1
            last = entry.start + (count - 1) * stride
            if count > 0 and (entry.start < 0 or last >= bound):
                return Outside(dim=dim, start=entry.start, size=count, bound=bound, stride=stride)
            continue
        values = np.atleast_1d(entry)
        outside = values[(values < 0) | (values >= bound)]
        if outside.size:
            return Outside(dim=dim, start=int(outside.flat[0]), size=None, bound=bound)
    return Outside(dim=0, start=0, size=None, bound=shape[0])


def _writes(step: ir.MachineStep, error: OutOfBounds) -> bool:
    if isinstance(step, ir.CopyStart):
        return error.place is step.destination
    return isinstance(step, ir.StoreStep | ir.AtomicStep)
