"""Observer of writes: the stores and copies that produced elements of an output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.comparison.dataflow import Dataflow
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import PlacedBlock, Window
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer import origins
from pallas_debug.machine.sanitizer.ordering.regions import selects
from pallas_debug.machine.sanitizer.shadows import shadow
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]

MAX_WRITES = 256
"""Maximum number of writes to a buffer that are kept since it was last set completely."""


class OutOfTime(Exception):
    """A run on the machine exceeded its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Write:
    """Writes of one step to one place, since another step last set it.

    Attributes:
      step: the store, or the start of a copy.
      region: elements of the buffer.
      number: position of the last write in the order of all writes.
      updates: whether the value depends on the previous contents.
      first, last: grid points of the first and the last write.
      iterations: loop iterations of the last write.
      points: number of grid points.
      count: number of writes.
      blocks: blocks of the watched output at the first and at the last write.
      since: the first grid point at which that output had the block of the last write.
      sources: what the value of the last write was computed from.
      origin: for a copy, the table entry from which the index of its source comes.
    """

    step: ir.MachineStep
    region: MemoryRegion
    number: int
    updates: bool
    first: Point
    last: Point
    iterations: Point
    points: int = 1
    count: int = 1
    blocks: tuple[Any, Any] = (None, None)
    since: Point = ()
    sources: tuple[LoadedMemory, ...] = ()
    origin: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LoadedMemory:
    """A load, or the source of a copy: the memory, and the writes to it until then."""

    region: MemoryRegion
    point: Point
    writes: tuple[Write, ...]

    @property
    def buffer(self) -> MemoryBuffer:
        return self.region.buffer


@dataclass(frozen=True, slots=True, eq=False)
class StoredElement:
    """Writes that produced an element of an output.

    Attributes:
      block: block of the output, if it is written block by block.
      writes: writes to the element, oldest first; before an update, all writes that it adds to.
      visits: number of times that the block was written back.
      before: whether the element was not written in the last of several visits, but in an earlier
        one.
    """

    place: Point
    block: Any
    writes: tuple[Write, ...]
    visits: int = 1
    before: bool = False


class WriteObserver(MachineObserver):
    """Records the writes behind some elements of an output.

    Memory does not grow with the run: only the writes to a place since it was last set are kept,
    and writes of the same step are counted together.

    Attributes:
      elements: the watched elements.

    Args:
      position: position of the output among the kernel's operands.
      elements: elements of the output to watch.
      deadline: deadline in terms of `time.monotonic()`.
    """

    def __init__(self, position: int, elements: Sequence[Point], deadline: float) -> None:
        self._position = position
        self.elements = tuple(elements)
        self._deadline = deadline
        self._flow = Dataflow()
        self._behind: dict[tuple[int, ...], frozenset[int]] = {}
        self._writes: dict[int, dict[Any, Write]] = {}
        self._loaded: dict[tuple[int, int], LoadedMemory] = {}
        self._origins: dict[int, str | None] = {}
        self._number = 0
        self._window: Window | None = None
        self._array: MemoryBuffer | None = None
        self._stored: dict[Point, StoredElement] = {}

    def stored(self) -> dict[Point, StoredElement]:
        """The elements with their writes, after the run."""
        found = dict(self._stored)
        for element in self.elements:
            if element not in found or found[element].block is None:
                writes = () if self._array is None else self._of(self._array, element)
                found[element] = StoredElement(element, None, writes)
        return found

    # Events

    def point_begins(self, thread: Thread) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime
        if self._window is None and self._array is None:
            item = thread.walk.refs[self._position]
            if isinstance(item, Window):
                self._window = item
            else:
                self._array = item.window.array if isinstance(item, PlacedBlock) else item.buffer

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if not iteration % 64 and time.monotonic() > self._deadline:
            raise OutOfTime

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._writes.pop(buffer.number, None)

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        self._writes.pop(buffer.number, None)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        writes = self._writes.get(region.buffer.number)
        kept = () if writes is None else tuple(writes.values())
        self._loaded[thread.number, id(step)] = LoadedMemory(region, thread.point, kept)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        assert isinstance(step, ir.StoreStep | ir.AtomicStep)
        sources = self._sources(thread, step)
        is_masked = step.mask is not None and not region.is_masked
        is_update = isinstance(step, ir.AtomicStep) or step.adds or is_masked
        is_update |= any(source.buffer is region.buffer for source in sources)
        others = tuple(source for source in sources if source.buffer is not region.buffer)
        self._note(step, region, is_update, thread.point, thread.iterations, others)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._origins[copy.number] = origins.of_view(thread, copy.step.source)

    def copy_ends(self, copy: DmaCopy) -> None:
        source = copy.source.buffer
        kept = tuple(self._writes.get(source.number, {}).values())
        sources = (LoadedMemory(copy.source, copy.point, kept),)
        is_update = copy.adds or copy.destination.existing is not None
        origin = self._origins.pop(copy.number, None)
        self._note(
            copy.step, copy.destination, is_update, copy.point, copy.iterations, sources, origin
        )

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        if window is not self._window:
            return
        outer, inner = window.bounds(block)
        for element in self.elements:
            if not all(s.start <= i < s.stop for i, s in zip(element, outer, strict=True)):
                continue
            kept = [
                i - s.start
                for i, s, squeezed in zip(element, outer, window.spec.squeezed, strict=True)
                if not squeezed
            ]
            place = tuple(i + s.start for i, s in zip(kept, inner, strict=True))
            writes = self._of(window.current, place)
            known = self._stored.get(element)
            visits = 1 if known is None else known.visits + 1
            before = not writes and known is not None and bool(known.writes or known.before)
            self._stored[element] = StoredElement(place, block, writes, visits, before)

    # Writes

    def _note(
        self,
        step: ir.MachineStep,
        region: MemoryRegion,
        updates: bool,
        point: Point,
        iterations: Point,
        sources: tuple[LoadedMemory, ...],
        origin: str | None = None,
    ) -> None:
        self._number += 1
        number = region.buffer.number
        writes = self._writes.setdefault(number, {})
        place = _key(region)
        block = None if self._window is None else self._window.block
        known = writes.pop((id(step), place), None)
        if not updates:
            if region.is_whole:
                writes.clear()
            else:
                for key in [k for k in writes if k[1] == place and place is not None]:
                    del writes[key]
        made = Write(
            step=step, region=region, number=self._number, updates=updates, first=point,
            last=point, iterations=iterations, blocks=(block, block), since=point,
            sources=sources, origin=origin,
        )  # fmt: skip
        if known is not None and updates and known.updates and not _reset(writes, known):
            made = replace(
                made,
                first=known.first,
                points=known.points + (known.last != point),
                count=known.count + 1,
                blocks=(known.blocks[0], block),
                since=known.since if known.blocks[1] == block else point,
            )
        writes[id(step), place] = made
        if len(writes) > MAX_WRITES:
            del writes[next(iter(writes))]

    def _sources(
        self, thread: Thread, step: ir.StoreStep | ir.AtomicStep
    ) -> tuple[LoadedMemory, ...]:
        frames = thread.frames
        value = step.values[-1] if isinstance(step, ir.AtomicStep) else step.value
        key = (*(id(frame.program) for frame in frames), value.number)
        behind = self._behind.get(key)
        if behind is None:
            behind = self._behind[key] = self._flow.loads(frames, value)
        found: dict[int, LoadedMemory] = {}
        for load in behind:
            loaded = self._loaded.get((thread.number, load))
            # A load that did not run at this grid point is in a branch that was not taken.
            if loaded is not None and loaded.point == thread.point:
                known = found.get(loaded.buffer.number)
                if known is None or _latest(loaded) >= _latest(known):
                    found[loaded.buffer.number] = loaded
        return tuple(found.values())

    def _of(self, buffer: MemoryBuffer, element: Point) -> tuple[Write, ...]:
        return writers(tuple(self._writes.get(buffer.number, {}).values()), element)


def writers(writes: Sequence[Write], element: Point | None) -> tuple[Write, ...]:
    """Writes that produced an element of a buffer, oldest first.

    Args:
      element: the element; None for any.
    """
    of_element = sorted(
        (w for w in writes if element is None or _selects(w.region, element)),
        key=lambda write: write.number,
    )
    if element is None:
        return tuple(of_element)
    begins = max((i for i, write in enumerate(of_element) if not write.updates), default=0)
    return tuple(of_element[begins:])


def behind(load: LoadedMemory, stored: Write, element: Point) -> tuple[Write, ...]:
    """Writes behind a load's contribution to an element of a store, if the positions correspond.

    Args:
      element: element of the buffer that was stored to.
    """
    of_load = [write for write in load.writes if _overlap(write.region, load.region)]
    return writers(of_load, _corresponding(load.region, stored.region, element))


def is_overwritten(write: Write, later: Sequence[Write]) -> bool:
    """Return whether a part of the data of a write may have been overwritten."""
    return any(not one.updates and _overlap(one.region, write.region) for one in later)


def _corresponding(load: MemoryRegion, store: MemoryRegion, element: Point) -> Point | None:
    """Element of a load that broadcasting aligns with an element of a store."""
    offset = _offset(store, element)
    if offset is None or load.index is None or len(offset) != len(load.shape):
        return None
    if len(store.shape) == len(load.shape) and any(
        n not in (1, m) for n, m in zip(load.shape, store.shape, strict=True)
    ):
        return None  # it was reduced, sliced or concatenated in between
    if any(i >= n != 1 for i, n in zip(offset, load.shape, strict=True)):
        return None
    at = iter(offset)
    found = []
    for entry in load.index:
        if isinstance(entry, slice):
            position, count = next(at), max(-(-(entry.stop - entry.start) // (entry.step or 1)), 1)
            found.append(entry.start + min(position, count - 1) * (entry.step or 1))
        elif isinstance(entry, np.ndarray):
            return None
        else:
            found.append(int(entry))
    return tuple(found)


def _offset(region: MemoryRegion, element: Point) -> Point | None:
    """Position of an element of a buffer in the value of a region."""
    if region.index is None or any(isinstance(e, np.ndarray) for e in region.index):
        return None
    return tuple(
        (i - e.start) // (e.step or 1)
        for i, e in zip(element, region.index, strict=True)
        if isinstance(e, slice)
    )


def _reset(writes: Mapping[Any, Write], known: Write) -> bool:
    """Return whether a part of what a step wrote has been set since."""
    return any(
        not write.updates and write.number > known.number and _overlap(write.region, known.region)
        for write in writes.values()
    )


def _overlap(a: MemoryRegion, b: MemoryRegion) -> bool:
    """Return whether two regions may have an element in common."""
    if a.index is None or b.index is None:
        return True
    return all(
        _ends(x)[0] < _ends(y)[1] and _ends(y)[0] < _ends(x)[1]
        for x, y in zip(a.index, b.index, strict=True)
    )


def _ends(entry: Entry) -> tuple[int, int]:
    if isinstance(entry, slice):
        return entry.start, entry.stop
    if isinstance(entry, np.ndarray):
        return (int(entry.min()), int(entry.max()) + 1) if entry.size else (0, 0)
    return int(entry), int(entry) + 1


def _latest(load: LoadedMemory) -> int:
    return max((write.number for write in load.writes), default=0)


def _key(region: MemoryRegion) -> int | None:
    """Identity of a region's place; None if it is too complex."""
    return None if region.index is None else shadow.index_key(region)


def _selects(region: MemoryRegion, element: Point) -> bool:
    """Return whether an element is in a region; True if unknown."""
    return region.index is None or selects(region.index, element)
