"""Tracker of writes: the writer of each value read, and reads of values not meant for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug import defaults
from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.trace import ControlTrace
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.arrays import ArrayLedger
from pallas_debug.machine.shadow.shadow import (
    BufferShadow,
    ReadKind,
    SiteKey,
    SuspectRead,
    WriteRecord,
)
from pallas_debug.machine.shadow.tiles import ShadowRoom
from pallas_debug.machine.shadow.tracked import Point, TrackedThread
from pallas_debug.machine.threads import Thread

MAX_RECORDS = 1 << 17
"""Number of writes after which records of writes without remaining elements are dropped."""


MAX_POINTS = 4
"""Maximum number of grid points that are kept for each step that writes to an operand."""


@dataclass(eq=False, slots=True)
class StoredPoints:
    """A step that has written to an operand, and the first grid points at which it did."""

    step: ir.MachineStep
    points: list[Point] = field(default_factory=list)


class MemoryTracker(ControlTrace):
    """Maintains shadow memory, and records suspect reads and the events of outputs.

    Attributes:
      writes: write records by number; those without remaining elements may have been dropped.
      count: number of the last write.
      suspects: first suspect read of each kind at each step.
      stored: operands by name, with the grid points at which each step has written to them, up to
        `MAX_POINTS`.
      padded: last copy into a buffer that included padding of an array, by buffer number.
      room: room for the shadows of arrays in HBM, if not all grid points are watched.
      last_watched: last grid point that was watched before the room was exhausted.
    """

    def __init__(self, launch: Launch, *, watched: WatchedPoints | None = None) -> None:
        """Set up the shadow.

        Args:
          watched: grid points to check; None for all. Writes of others have number `GIVEN`, like
            what the call passes in: nothing is known or reported about them.
        """
        super().__init__()
        self.launch = launch
        self.watched = watched
        self.room = ShadowRoom(defaults.MAX_SHADOW_BYTES)
        self.last_watched: Point | None = None
        self.axes = tuple(
            i
            for i, (size, parallel) in enumerate(zip(launch.grid, launch.parallel, strict=True))
            if parallel and size != 1
        )
        self.writes: dict[int, WriteRecord] = {}
        self.count = shadow.GIVEN
        self._limit = MAX_RECORDS
        self.shadows: dict[int, BufferShadow] = {}
        self.threads: dict[int, TrackedThread] = {}
        self.suspects: dict[SiteKey, SuspectRead] = {}
        self.stored: dict[str, dict[int, StoredPoints]] = {}
        self.padded: dict[int, DmaCopy] = {}
        self.arrays = ArrayLedger(launch)
        self.has_ended = False
        self._flying: dict[int, tuple[Thread, DmaCopy]] = {}

    # Memory

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        if buffer.type.semaphore is not None or buffer.content.dtype.kind == "O":
            return
        known = self.shadows.get(buffer.number)
        if known is not None:
            known.set(shadow.NEVER)  # the window of an output, for another block
            return
        is_given = buffer.kind in ("input", "prefetch")
        found = BufferShadow(buffer, buffer.kind, shadow.GIVEN if is_given else shadow.NEVER)
        if self.watched is not None and buffer.type.space in ir.OF_ARRAYS:
            found.whole, found.room = shadow.GIVEN, self.room
        self.shadows[buffer.number] = found

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        self.shadows.pop(buffer.number, None)

    def _thread(self, thread: Thread) -> TrackedThread:
        found = self.threads.get(thread.number)
        if found is None:
            windows = list(thread.walk.windows)
            outputs = [w for w in windows if w.operand.kind == "output"]
            for window in windows:
                for slot in window.slots:
                    self.shadows[slot.number].operand = window.operand.kind
            blocks: list[list[Point]] = [[] for _ in outputs]
            found = TrackedThread(windows, outputs, blocks, [2] * len(outputs))
            self.threads[thread.number] = found
            self.arrays.begins(self.shadows)
        return found

    # The grid

    def watches(self, state: TrackedThread, point: Point) -> bool:
        """Return whether a grid point, the thread's current or an earlier one, is checked."""
        if self.watched is None:
            return True
        if self.room.is_exhausted:
            return False
        return state.is_watched if point == state.points[-1] else point in self.watched

    def point_begins(self, thread: Thread) -> None:
        state = self._thread(thread)
        number = self.count + 1
        if self.watched is not None:
            state.is_watched = thread.point in self.watched
            if state.is_watched and not self.room.is_exhausted:
                self.last_watched = thread.point
        state.of_point = number
        for i, window in enumerate(state.outputs):
            visits, block = state.blocks[i], window.block
            assert block is not None
            if not visits or visits[-1] != block:
                state.starts[i] = number
                self.arrays.visits(window, block, thread.point)
            self.arrays.stays(window, block, thread.point)
            visits.append(block)
        state.points.append(thread.point)
        if self.axes:
            state.lanes.point_begins(tuple(thread.point[i] for i in self.axes), number)

    def fetches(self, thread: Thread, window: Window, block: Point) -> None:
        state = self._thread(thread)
        slot = window.slots[window.filled]
        found = self.shadows[slot.number]
        outer, inner = window.bounds(block)
        array = self.shadows[window.array.number]
        is_input = window.operand.kind == "input"
        found.set(shadow.PADDING if is_input else shadow.NEVER)
        sizes = tuple(n.stop - n.start for n in inner)
        if array.numbers is not None:
            found.array()[inner] = array.numbers[outer].reshape(sizes)
        elif sizes == slot.content.shape:
            found.set(array.whole)
        else:
            found.array()[inner] = array.whole
        self.arrays.fetched(window, block, outer, inner, slot, len(state.points))

    def writes_back(self, thread: Thread, window: Window, block: Point) -> None:
        state = self._thread(thread)
        is_watched = self.watches(state, thread.point)
        position = len(state.points) - 1
        self.arrays.written_back(window, block, position, state.windows, is_watched=is_watched)

    # Accesses

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        super().loads(thread, step, region, value)
        found = self.shadows.get(region.buffer.number)
        if found is None:
            return
        state = self.threads[thread.number]
        if self.watched is not None and not self.watches(state, thread.point):
            return
        oldest = found.whole if found.numbers is None else found.least(region)
        if oldest < state.of_point:
            self._reads_old(thread, state, step, region, found, oldest, value)

    def is_suspect(self, thread: Thread, region: MemoryRegion) -> bool:
        """Return whether a read of a region is suspect."""
        found = self.shadows.get(region.buffer.number)
        if found is None:
            return False
        state = self.threads[thread.number]
        oldest = found.whole if found.numbers is None else found.least(region)
        if oldest >= state.of_point:
            return False
        is_carried = shadow.GIVEN < oldest < state.lanes.since and found.operand == "scratch"
        return oldest <= shadow.NEVER or is_carried

    def _reads_old(
        self, thread: Thread, state: TrackedThread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, oldest: int, value: Any,
    ) -> None:  # fmt: skip
        """Handle a read of elements that were not written at the current grid point."""
        if found.operand == "input":
            self.arrays.reads_overwritten(thread, step, region)
        if oldest <= shadow.NEVER:
            kind: ReadKind = "padding" if oldest == shadow.PADDING else "unwritten"
            self._suspect(kind, thread, step, region, found, None, value)
            numbers = found.of(region)
            written = None if numbers is None else numbers[numbers > shadow.GIVEN]
            if written is None or not written.size:
                return
            oldest = int(written.min())
        is_carried = shadow.GIVEN < oldest < state.lanes.since
        if is_carried and found.operand == "scratch":
            self._suspect("parallel", thread, step, region, found, state.lanes.is_other, value)

    def _suspect(
        self, kind: ReadKind, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, unseen: shadow.Unseen | None, value: Any, copy: DmaCopy | None = None,
    ) -> None:  # fmt: skip
        """Record a read of elements that were not meant for it, in full the first time."""
        key: SiteKey = (id(step), region.buffer.name, kind)
        known = self.suspects.get(key)
        if known is None:
            known = self._noted(key, thread, step, region, found, unseen, copy)
            if known is None:
                return
            self.suspects[key] = known
        else:
            known.count += 1
        self.alter(known, region, found, unseen, value)

    def _noted(
        self, key: SiteKey, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, unseen: shadow.Unseen | None, copy: DmaCopy | None,
    ) -> SuspectRead | None:  # fmt: skip
        buffer, kind = region.buffer, key[2]
        mask = found.where(region, lambda numbers: shadow.chosen(kind, numbers, unseen))
        if not mask.any():
            return None
        point, iterations = (
            (thread.point, thread.iterations) if copy is None else (copy.point, copy.iterations)
        )
        noted = SuspectRead(
            key, step, buffer, found.operand, self.count, thread.number, point, iterations, mask,
            int(found.where(region).sum()), copy,
        )  # fmt: skip
        element, numbers = noted.element, found.numbers
        noted.writer = self.writes.get(int(found.whole if numbers is None else numbers[element]))
        noted.back = self.arrays.came_back(buffer)
        noted.is_early = self._is_early(buffer, mask)
        return noted

    def _is_early(self, buffer: MemoryBuffer, mask: shadow.Mask) -> bool:
        return any(
            mask[index].any()
            for _, copy in self._flying.values()
            if copy.destination.buffer is buffer
            for index in copy.destination.ranges()
        )

    def alter(
        self,
        suspect: SuspectRead,
        region: MemoryRegion,
        found: BufferShadow,
        unseen: shadow.Unseen | None,
        value: Any,
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
        state = self.threads[thread.number]
        mask = None
        if isinstance(step, ir.StoreStep) and step.mask is not None and not region.is_masked:
            mask = np.asarray(thread.frames[-1].registers[step.mask.number])
        is_watched = self.watched is None or self.watches(state, thread.point)
        self._stored(buffer, step, thread.point)
        found.write(region, self.record(thread, step) if is_watched else shadow.GIVEN, mask)

    def _stored(self, buffer: MemoryBuffer, step: ir.MachineStep, point: Point) -> None:
        """Note the grid point of a write."""
        known = self.stored.setdefault(buffer.name, {}).setdefault(id(step), StoredPoints(step))
        if len(known.points) < MAX_POINTS and point not in known.points[-1:]:
            known.points.append(point)

    def record(self, thread: Thread, step: ir.MachineStep, copy: DmaCopy | None = None) -> int:
        """Assign a number to a write."""
        self.count = number = self.count + 1
        place = thread if copy is None else copy
        of = thread.number if copy is None else copy.thread
        written = WriteRecord(number, step, of, place.point, place.iterations, copy)
        self.writes[number] = written
        if len(self.writes) > self._limit:
            self._forget()
        return number

    def _forget(self) -> None:
        """Drop the records of writes without remaining elements."""
        live = {self.count}
        for found in self.shadows.values():
            live.update(found.distinct())
        for numbers in self.arrays.numbers():
            live.update(np.unique(numbers).tolist())
        self.writes = {n: record for n, record in self.writes.items() if n in live}
        self._limit = max(MAX_RECORDS, 2 * len(self.writes))

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        super().copy_starts(thread, copy)
        self._flying[id(copy)] = thread, copy
        target = copy.destination
        if copy.source.buffer.device != target.buffer.device:
            # In another order of the run, the copy may have preceded a read on its device.
            for suspect in self.suspects.values():
                if suspect.buffer is target.buffer and suspect.kind == "unwritten":
                    found = (suspect.mask[index] for index in target.ranges())
                    suspect.is_sent_later |= any(part.any() for part in found)

    def copy_ends(self, copy: DmaCopy) -> None:
        thread, _ = self._flying.pop(id(copy))
        state = self.threads[copy.thread]
        is_watched = self.watches(state, copy.point)
        source = self.shadows.get(copy.source.buffer.number)
        if source is not None:
            oldest = source.least(copy.source)
            if is_watched and oldest <= shadow.NEVER:
                kind: ReadKind = "padding" if oldest == shadow.PADDING else "unwritten"
                self._suspect(kind, thread, copy.step, copy.source, source, None, None, copy)
            self.arrays.copied_from(copy)
        target = self.shadows.get(copy.destination.buffer.number)
        if target is None:
            return
        self._stored(target.buffer, copy.step, copy.point)
        number = self.record(thread, copy.step, copy) if is_watched else shadow.GIVEN
        target.write(copy.destination, number)
        if target.take_padding(copy):
            self.padded[target.buffer.number] = copy

    def ends(self) -> None:
        self.has_ended = True

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Return the current contents of the results of all devices."""
        return [buffer.content for buffer in self._result_buffers()]

    def _result_buffers(self) -> list[MemoryBuffer]:
        """Whole arrays of the results, device by device."""
        buffers = [s.buffer for s in self.shadows.values()]
        found = []
        for device in dict.fromkeys(b.device for b in buffers):
            own = [b for b in buffers if b.device == device]
            outputs = iter([b for b in own if b.kind == "output"])
            inputs = [b for b in own if b.kind in ("prefetch", "input")]
            for operand in self.launch.operands:
                if operand.kind == "output":
                    is_own = operand.alias is None
                    found.append(next(outputs) if is_own else inputs[operand.alias or 0])
        return found
