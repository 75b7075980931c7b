"""Reads and writes of a run in shadow memory: suspect reads, and events of whole arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.shadow import (
    BufferShadow,
    Mask,
    NumberTest,
    ReadKind,
    SiteKey,
    SuspectRead,
    WriteRecord,
    differing,
    index_key,
)
from pallas_debug.machine.threads import Thread


class ControlTrace(MachineObserver):
    """Records the branches taken, the indices computed and the semaphores changed.

    Attributes:
      trace: hash of them so far; two runs of a kernel with equal traces execute the same steps on
        the same elements.
    """

    def __init__(self) -> None:
        self.trace = 0
        self._dynamic: dict[int, bool] = {}

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        self._decided(step, chosen)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if type(step) is ir.WhileLoop:
            self._decided(step, iteration)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        self._accesses(step, region)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        self._accesses(step, region)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._accesses(copy.step, copy.source, copy.destination)

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self._decided(step, counter.entry, amount)

    waited = signals

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        self._decided(step, str(error.index))

    reads_outside = leaves

    def _accesses(self, step: ir.MachineStep, *regions: MemoryRegion) -> None:
        found = self._dynamic.get(id(step))
        if found is None:
            found = self._dynamic[id(step)] = is_dynamic(step)
        if found:
            self._decided(step, *map(index_key, regions))

    def _decided(self, step: ir.MachineStep, *values: Any) -> None:
        self.trace = hash((self.trace, id(step), values))


def is_dynamic(step: ir.MachineStep) -> bool:
    """Return whether the elements that a step accesses depend on a value."""
    places = (getattr(step, name, None) for name in ("place", "source", "destination"))
    return any(True for place in places if place is not None for _ in ir.registers(place.view))


Point = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(eq=False, slots=True)
class BlockReturn:
    """An output block that is revisited after another one.

    Attributes:
      first, last: first and last grid point of the previous visits.
    """

    window: Window
    block: Point
    first: Point
    last: Point
    again: Point


@dataclass(eq=False, slots=True)
class OverwrittenBlock:
    """Elements of a fetched block whose memory was or is being overwritten.

    Attributes:
      mask: these elements of the window.
      is_under_way: whether fetch and write-back may happen in either order.
    """

    window: Window
    block: Point
    mask: Mask
    is_under_way: bool


@dataclass(eq=False, slots=True)
class OverwrittenRead:
    """The first read of an overwritten block by a step."""

    step: ir.MachineStep
    point: Point
    iterations: Point
    block: OverwrittenBlock
    buffer: MemoryBuffer
    element: Point
    writer: WriteRecord | None


@dataclass(eq=False, slots=True)
class _SharedArray:
    """An array that is both input and output.

    Attributes:
      read: elements whose original values were fetched.
      recent: grid positions and slices of the last write-backs.
    """

    read: Mask
    recent: list[tuple[int, Slices]] = field(default_factory=list)


class ArrayLedger:
    """Events that concern whole arrays.

    Attributes:
      outputs: outputs that share memory with inputs, by the names of these.
      returns: revisits of output blocks that lose what was written before, the first of each
        output.
      overwritten: reads of blocks that were overwritten.
      came_back: revisits of the blocks that are in the windows, by buffer number.
    """

    def __init__(
        self, launch: Launch, shadows: Mapping[int, BufferShadow], writes: Mapping[int, WriteRecord]
    ) -> None:
        given = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
        self.outputs = {
            given[operand.alias].name: operand.name
            for operand in launch.operands
            if operand.kind == "output" and operand.alias is not None
        }
        self.returns: dict[str, BlockReturn] = {}
        self.overwritten: dict[tuple[int, str], OverwrittenRead] = {}
        self._shadows = shadows
        self._writes = writes
        self.came_back: dict[int, BlockReturn] = {}
        self._shared: dict[int, _SharedArray] = {}
        self._marked: dict[int, OverwrittenBlock] = {}

    def result_in(self, buffer: MemoryBuffer) -> str | None:
        """Return the output that a whole array holds, or shares with an input; None if none."""
        if buffer.kind == "output":
            return buffer.name
        return self.outputs.get(buffer.name) if buffer.kind == "input" else None

    def _array(self, buffer: MemoryBuffer) -> _SharedArray | None:
        if buffer.kind != "input" or buffer.name not in self.outputs:
            return None
        if buffer.number not in self._shared:
            self._shared[buffer.number] = _SharedArray(np.zeros(buffer.content.shape, bool))
        return self._shared[buffer.number]

    # Visits of output blocks

    def visits(self, window: Window, block: Point, point: Point, before: Sequence[Point]) -> None:
        """Handle a grid point whose output block differs from the previous one.

        Args:
          before: grid points that have visited the block on the same core.
        """
        slot = window.current.number
        self.came_back.pop(slot, None)
        if before and not window.spec.revisits:
            self.came_back[slot] = BlockReturn(window, block, before[0], before[-1], point)

    def returned(self, window: Window, block: Point) -> None:
        """Handle a write-back of a block, before it: a revisit loses what it does not write."""
        back = self.came_back.get(window.current.number)
        if back is None:
            return
        outer, inner = window.bounds(block)
        old = window.array.content[outer]
        numbers = self._shadows[window.current.number].numbers[inner].reshape(old.shape)
        lost = differing(old, window.current.content[inner].reshape(old.shape))
        if (lost & (numbers <= shadow.NEVER)).any():
            self.returns.setdefault(window.operand.name, back)

    # Arrays that are both input and output

    def written_back(
        self, window: Window, block: Point, position: int, windows: Sequence[Window]
    ) -> None:
        """Handle a write-back at a grid position, before it; the shadow has its numbers."""
        shared = self._array(window.array)
        if shared is None:
            return
        outer, inner = window.bounds(block)
        shared.recent = [*shared.recent[-3:], (position, outer)]
        changed = np.zeros(window.array.content.shape, bool)
        old = window.array.content[outer]
        changed[outer] = differing(old, window.current.content[inner].reshape(old.shape))
        numbers = self._shadows[window.array.number].numbers
        for other in windows:
            following, is_double = other.next_block, len(other.slots) > 1
            if other.operand.kind != "input" or other.array is not window.array:
                continue
            if following is None or following == other.block or not is_double:
                continue
            # It has been prefetched: the write-back may come first.
            theirs, inner = other.bounds(following)
            slot = other.slots[(other.slot + 1) % len(other.slots)]
            mask = changed[theirs]
            if mask.any():
                self._mark(other, following, slot, mask, is_under_way=True)
                sizes = [n.stop - n.start for n in inner]
                new = numbers[theirs].reshape(sizes)
                self._shadows[slot.number].put(inner, new, mask.reshape(sizes))

    def fetched(self, window: Window, block: Point, slot: MemoryBuffer, position: int) -> None:
        """Handle a fetch of a block at the beginning of the grid point at this position."""
        self._marked.pop(slot.number, None)
        shared = self._array(window.array)
        if shared is None:
            return
        outer, _ = window.bounds(block)
        numbers = self._shadows[window.array.number].numbers[outer]
        late = np.zeros(window.array.content.shape, bool)
        for written, part in shared.recent:
            if written == position - 1:  # the write-back may still be in progress
                late[part] = True
        is_late, is_written = late[outer], numbers > shadow.GIVEN
        mask = is_written & (is_late | ~shared.read[outer])
        shared.read[outer] |= ~is_written
        if mask.any():
            is_under_way = bool((is_late & is_written).any())
            self._mark(window, block, slot, mask, is_under_way=is_under_way)

    def _mark(
        self, window: Window, block: Point, slot: MemoryBuffer, mask: Mask, *, is_under_way: bool
    ) -> None:
        _, inner = window.bounds(block)
        of_slot = np.zeros(slot.content.shape, bool)
        of_slot[inner] = mask.reshape(of_slot[inner].shape)
        self._marked[slot.number] = OverwrittenBlock(window, block, of_slot, is_under_way)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Handle a load from an input's block, whose memory may have been overwritten."""
        marked = self._marked.get(region.buffer.number)
        if marked is None or (id(step), marked.window.operand.name) in self.overwritten:
            return
        kept = self._shadows[region.buffer.number]
        mask = kept.where(region) & marked.mask
        if mask.any():
            element = shadow.first_in(mask)
            self.overwritten[id(step), marked.window.operand.name] = OverwrittenRead(
                step, thread.point, thread.iterations, marked, region.buffer, element,
                self._writes.get(int(kept.numbers[element])),
            )  # fmt: skip

    def copied_from(self, copy: DmaCopy) -> None:
        """Handle a read by a DMA."""
        shared = self._array(copy.source.buffer)
        if shared is not None:
            for index in copy.source.ranges():
                shared.read[index] = True


MAX_RECORDS = 1 << 17
"""Number of writes after which records of writes without remaining elements are dropped."""


@dataclass(eq=False, slots=True)
class TrackedThread:
    """Position of a thread, in numbers of writes.

    Attributes:
      outputs: outputs that the pipeline around the kernel writes.
      visited: grid points so far, by output and block.
      starts: first number of the current visit of each output's block.
      of_point: first number of the current grid point.
      of_core: first number since the coordinates along parallel axes changed.
      num_points: number of grid points so far.
    """

    outputs: list[Window]
    visited: dict[str, dict[Point, list[Point]]]
    starts: list[int]
    point: Point = ()
    of_point: int = 1
    of_core: int = 1
    num_points: int = 0

    def visits(self, name: str, element: Point) -> list[Point] | None:
        """Grid points whose block of an output contains an element; None if it has no blocks."""
        window = next((w for w in self.outputs if w.operand.name == name), None)
        if window is None:
            return None
        found = []
        for block, points in self.visited[name].items():
            outer, _ = window.bounds(block)
            if all(n.start <= i < n.stop for n, i in zip(outer, element, strict=True)):
                found += points
        return sorted(found)


class MemoryTracker(ControlTrace):
    """Maintains shadow memory, and records suspect reads and the events of outputs.

    Attributes:
      writes: write records by number; those without remaining elements may have been dropped.
      count: number of the last write.
      suspects: first suspect read of each kind at each step.
      stored: operands by name, with the steps that have written to them, and where each did first.
      padded: last copy into a buffer that included padding of an array, by buffer number.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch
        self.writes: dict[int, WriteRecord] = {}
        self.count = shadow.GIVEN
        self._limit = MAX_RECORDS
        self.shadows: dict[int, BufferShadow] = {}
        self.threads: dict[int, TrackedThread] = {}
        self.suspects: dict[SiteKey, SuspectRead] = {}
        self.stored: dict[str, dict[int, tuple[ir.MachineStep, Point]]] = {}
        self.padded: dict[int, DmaCopy] = {}
        self.arrays = ArrayLedger(launch, self.shadows, self.writes)
        self.has_ended = False
        self._flying: dict[int, tuple[Thread, DmaCopy]] = {}

    # Memory

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        if buffer.type.semaphore is not None or buffer.content.dtype.kind == "O":
            return
        known = self.shadows.get(buffer.number)
        if known is not None:
            known.fill(shadow.NEVER)  # the window of an output, for another block
            return
        is_given = buffer.kind in ("input", "prefetch")
        number = shadow.GIVEN if is_given else shadow.NEVER
        self.shadows[buffer.number] = BufferShadow(buffer, buffer.kind, number)

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        self.shadows.pop(buffer.number, None)

    def _thread(self, thread: Thread) -> TrackedThread:
        found = self.threads.get(thread.number)
        if found is None:
            outputs = [w for w in thread.walk.windows if w.operand.kind == "output"]
            for window in thread.walk.windows:
                for slot in window.slots:
                    self.shadows[slot.number].operand = window.operand.kind
            visited = {window.operand.name: dict[Point, list[Point]]() for window in outputs}
            found = TrackedThread(outputs, visited, [1] * len(outputs))
            self.threads[thread.number] = found
        return found

    # The grid

    def _same_core(self, a: Point, b: Point) -> bool:
        """Return whether two grid points have the same coordinates along parallel axes."""
        parallel = self.launch.parallel
        return all(x == y for x, y, is_so in zip(a, b, parallel, strict=False) if is_so)

    def point_begins(self, thread: Thread) -> None:
        state, point = self._thread(thread), thread.point
        state.of_point = number = self.count + 1
        if not self._same_core(state.point, point):
            state.of_core = number
        for i, window in enumerate(state.outputs):
            block, visited = window.block, state.visited[window.operand.name]
            assert block is not None
            points = visited.setdefault(block, [])
            if not points or points[-1] != state.point:
                state.starts[i] = number
                before = [p for p in points if self._same_core(p, point)]
                self.arrays.visits(window, block, point, before)
            points.append(point)
        state.point = point
        state.num_points += 1

    def fetches(self, thread: Thread, window: Window, block: Point) -> None:
        self._thread(thread)
        slot = window.slots[window.filled]
        found, array = self.shadows[slot.number], self.shadows[window.array.number]
        outer, inner = window.bounds(block)
        found.fill(shadow.PADDING if window.operand.kind == "input" else shadow.NEVER)
        found.put(inner, array.part(outer, tuple(n.stop - n.start for n in inner)))
        self.arrays.fetched(window, block, slot, thread.walk.position)

    def writes_back(self, thread: Thread, window: Window, block: Point) -> None:
        outer, inner = window.bounds(block)
        slot, array = (self.shadows[b.number] for b in (window.current, window.array))
        self.arrays.returned(window, block)
        array.put(outer, slot.part(inner, tuple(n.stop - n.start for n in outer)))
        self.arrays.written_back(window, block, thread.walk.position, thread.walk.windows)

    # Accesses

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        super().loads(thread, step, region, value)
        found = self.shadows.get(region.buffer.number)
        if found is None:
            return
        oldest = found.least(region)
        if oldest >= self.threads[thread.number].of_point:
            return
        if found.operand == "input":
            self.arrays.loads(thread, step, region)
        for kind in self._kinds(thread, region, oldest):
            self._suspect(kind, thread, step, region, value)

    def is_suspect(self, thread: Thread, region: MemoryRegion) -> bool:
        """Return whether a read of a region is suspect."""
        found = self.shadows.get(region.buffer.number)
        return found is not None and any(self._kinds(thread, region, found.least(region)))

    def _kinds(self, thread: Thread, region: MemoryRegion, oldest: int) -> list[ReadKind]:
        """Kinds of memory in a region that a read is not meant to see; `oldest` is in it."""
        found, kinds = self.shadows[region.buffer.number], list[ReadKind]()
        if oldest <= shadow.NEVER:
            kinds.append("padding" if oldest == shadow.PADDING else "unwritten")
            numbers = found.of(region)
            written = None if numbers is None else numbers[numbers > shadow.GIVEN]
            oldest = shadow.GIVEN if written is None or not written.size else int(written.min())
        since = self.threads[thread.number].of_core
        if found.operand == "scratch" and shadow.GIVEN < oldest < since:
            kinds.append("other core")
        return kinds

    def _test(self, kind: ReadKind, thread: Thread) -> NumberTest:
        """Return a test for the numbers of elements that a read of this kind should not see."""
        if kind == "other core":
            return lambda numbers: np.isin(
                numbers,
                [
                    n
                    for n in np.unique(numbers[numbers > shadow.GIVEN]).tolist()
                    if not self._same_core(self.writes[n].point, thread.point)
                ],
            )
        number = shadow.PADDING if kind == "padding" else shadow.NEVER
        return lambda numbers: np.asarray(numbers == number)

    def _suspect(
        self, kind: ReadKind, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        value: Any, copy: DmaCopy | None = None,
    ) -> None:  # fmt: skip
        """Record a read of elements that were not meant for it, in full the first time."""
        key: SiteKey = (id(step), region.buffer.name, kind)
        test = self._test(kind, thread)
        known = self.suspects.get(key) or self._noted(key, thread, step, region, test, copy)
        if known is not None:
            self.suspects[key] = known
            self.alter(known, region, test, value)

    def _noted(
        self, key: SiteKey, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        test: NumberTest, copy: DmaCopy | None,
    ) -> SuspectRead | None:  # fmt: skip
        buffer, found = region.buffer, self.shadows[region.buffer.number]
        mask = found.where(region, test)
        if not mask.any():
            return None
        at = thread if copy is None else copy
        writer = self.writes.get(int(found.numbers[shadow.first_in(mask)]))
        noted = SuspectRead(
            key, step, buffer, self.count, at.point, at.iterations, mask,
            int(found.where(region).sum()), copy, writer, self.arrays.came_back.get(buffer.number),
        )  # fmt: skip
        for _, flying in self._flying.values():
            self._finds_early(noted, flying)
        return noted

    def _finds_early(self, suspect: SuspectRead, copy: DmaCopy) -> None:
        """Note that a copy to the elements of a read is under way, or may have been."""
        if copy.destination.buffer is suspect.buffer:
            parts = (suspect.mask[index] for index in copy.destination.ranges())
            suspect.is_early |= any(part.any() for part in parts)

    def alter(
        self, suspect: SuspectRead, region: MemoryRegion, test: NumberTest, value: Any
    ) -> None:
        """Alter the values of a suspect read; a no-op except in replays."""

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        super().stores(thread, step, region, value)
        buffer = region.buffer
        found = self.shadows.get(buffer.number)
        if found is None:
            return
        mask = None
        if isinstance(step, ir.StoreStep) and step.mask is not None and not region.is_masked:
            mask = np.asarray(thread.frames[-1].registers[step.mask.number])
        self.stored.setdefault(buffer.name, {}).setdefault(id(step), (step, thread.point))
        found.write(region, self.record(thread, step), mask)

    def record(self, thread: Thread, step: ir.MachineStep, copy: DmaCopy | None = None) -> int:
        """Assign a number to a write."""
        self.count = number = self.count + 1
        at = thread if copy is None else copy
        self.writes[number] = WriteRecord(number, step, at.point, at.iterations, copy)
        if len(self.writes) > self._limit:
            self._forget()
        return number

    def _forget(self) -> None:
        """Drop the records of writes without remaining elements."""
        live = {self.count}.union(*(found.distinct() for found in self.shadows.values()))
        for number in [n for n in self.writes if n not in live]:
            del self.writes[number]
        self._limit = max(MAX_RECORDS, 2 * len(self.writes))

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        super().copy_starts(thread, copy)
        self._flying[id(copy)] = thread, copy
        if copy.source.buffer.device != copy.destination.buffer.device:
            # In another order of the run, the copy may have preceded a read on its device.
            for suspect in self.suspects.values():
                if suspect.kind == "unwritten":
                    self._finds_early(suspect, copy)

    def copy_ends(self, copy: DmaCopy) -> None:
        thread, _ = self._flying.pop(id(copy))
        source = self.shadows.get(copy.source.buffer.number)
        if source is not None:
            oldest = source.least(copy.source)
            if oldest <= shadow.NEVER:
                kind: ReadKind = "padding" if oldest == shadow.PADDING else "unwritten"
                self._suspect(kind, thread, copy.step, copy.source, None, copy)
            self.arrays.copied_from(copy)
        target = self.shadows.get(copy.destination.buffer.number)
        if target is None:
            return
        by_step = self.stored.setdefault(target.buffer.name, {})
        by_step.setdefault(id(copy.step), (copy.step, copy.point))
        target.write(copy.destination, self.record(thread, copy.step, copy))
        if target.take_padding(copy):
            self.padded[target.buffer.number] = copy

    def ends(self) -> None:
        self.has_ended = True

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Return the current contents of the results of all devices, device by device."""
        buffers = [s.buffer for s in self.shadows.values()]
        found = []
        for device in dict.fromkeys(b.device for b in buffers):
            own = [b for b in buffers if b.device == device]
            outputs = iter([b for b in own if b.kind == "output"])
            inputs = [b for b in own if b.kind in ("prefetch", "input")]
            for operand in self.launch.operands:
                if operand.kind == "output":
                    alias = operand.alias
                    found.append((next(outputs) if alias is None else inputs[alias]).content)
        return found
