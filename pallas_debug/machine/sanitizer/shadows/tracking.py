"""Tracker of writes: the writer of each value read, and reads of values not meant for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_debug import defaults
from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.report import index_text
from pallas_debug.machine.sanitizer.shadows import shadow
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.outputs import ArrayLedger
from pallas_debug.machine.sanitizer.shadows.shadow import (
    BufferShadow,
    ReadKind,
    SiteKey,
    SuspectRead,
    WriteRecord,
)
from pallas_debug.machine.sanitizer.shadows.tiles import ShadowRoom
from pallas_debug.machine.sanitizer.shadows.tracked import Point, TrackedThread, begins_moment
from pallas_debug.machine.threads import Thread

MAX_LATER = 32
"""Maximum number of later reads by a step, of values left by other output blocks, that are kept;
where a row of the grid begins, twice as many."""

MAX_RECORDS = 1 << 17
"""Number of writes after which records of writes without remaining elements are dropped."""


class MemoryTracker(MachineObserver):
    """Maintains shadow memory, and records suspect reads and the events of outputs.

    Attributes:
      writes: write records by number; those without remaining elements may have been dropped.
      count: number of the last write.
      suspects: first suspect read of each kind at each step.
      trace: hash of the branches taken and indices computed so far.
      results_so_far: hash of all values stored to output blocks, including replaced ones;
        maintained if `keeps_results`.
      flow: flow of values from scratch to outputs.
      stored: operands by name, with the steps that have stored or copied to them.
      padded: last copy into a buffer that included padding of an array, by buffer number.
      room: room for the shadows of arrays in HBM, if not all grid points are watched.
      last_watched: last grid point that was watched before the room was exhausted.
    """

    def __init__(
        self, launch: Launch, *, keeps_results: bool = False, watched: WatchedPoints | None = None
    ) -> None:
        """Set up the shadow.

        Args:
          watched: grid points to check; None for all. Writes of others have number `GIVEN`, like
            what the call passes in: nothing is known or reported about them.
        """
        self.launch = launch
        self.flow = ValueFlow(launch)
        self.keeps_results = keeps_results
        self.watched = watched
        self.room = ShadowRoom(defaults.MAX_SHADOW_BYTES)
        self.last_watched: Point | None = None
        self.results_so_far = 0
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
        self.stored: dict[str, dict[int, ir.MachineStep]] = {}
        self.padded: dict[int, DmaCopy] = {}
        self.arrays = ArrayLedger(launch, self.flow)
        self.trace = 0
        self.has_ended = False
        self._dynamic: dict[int, bool] = {}
        self._flying: dict[int, tuple[Thread, DmaCopy, int]] = {}

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
            names = {window.operand.name for window in outputs}
            arrays = [
                o.name for o in self.launch.operands if o.kind == "output" and o.name not in names
            ]
            found = TrackedThread(windows, outputs, arrays, blocks, [2] * len(outputs), self.flow)
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
        state.of_point, state.has_carried, state.begins_block = number, False, not state.points
        for i, window in enumerate(state.outputs):
            visits, block = state.blocks[i], window.block
            assert block is not None
            if not visits or visits[-1] != block:
                state.starts[i], state.begins_block = number, True
                self.arrays.visits(window, block, thread.point)
            self.arrays.stays(window, block, thread.point)
            visits.append(block)
        state.points.append(thread.point)
        state.moment_begins(number)
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
        self.arrays.written_back(
            self, thread, window, block, position, state.windows, is_watched=is_watched
        )

    # Accesses

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        found = self.shadows.get(region.buffer.number)
        if found is None:
            return
        if self._is_dynamic(step):
            self.trace = hash((self.trace, id(step), shadow.index_key(region)))
        state = self.threads[thread.number]
        if self.watched is not None and not self.watches(state, thread.point):
            return
        oldest = found.whole if found.numbers is None else found.least(region)
        if oldest < state.of_moment:
            self._reads_old(thread, state, step, region, found, oldest, value)

    def _reads_old(
        self, thread: Thread, state: TrackedThread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, oldest: int, value: Any,
    ) -> None:  # fmt: skip
        """Handle a read of elements that were not written at the current moment."""
        if found.operand == "input":
            self.arrays.reads_overwritten(thread, step, region)
        if oldest <= shadow.NEVER:
            kind: ReadKind = "padding" if oldest == shadow.PADDING else "unwritten"
            self._suspect(kind, thread, step, region, found, shadow.GIVEN, value)
            numbers = found.of(region)
            written = None if numbers is None else numbers[numbers > shadow.GIVEN]
            if written is None or not written.size:
                return
            oldest = int(written.min())
        if oldest == shadow.GIVEN or oldest >= state.of_moment:
            if oldest == shadow.GIVEN and self._may_carry(found):
                state.has_carried = True
            return
        if oldest < state.of_point:
            state.has_carried = True
        if found.operand not in ("scratch", "scoped"):
            return
        if oldest < state.lanes.since and found.operand == "scratch":
            self._suspect("parallel", thread, step, region, found, state.lanes.is_other, value)
        of_block = state.since(found.buffer.name)
        if oldest < of_block:
            self._suspect("stale", thread, step, region, found, of_block, value)

    def _may_carry(self, found: BufferShadow) -> bool:
        """Return whether unwatched grid points may have written `GIVEN` elements."""
        if self.watched is None:
            return False
        return found.operand not in ("input", "prefetch") or self.arrays.is_shared(
            found.buffer.name
        )

    def _suspect(
        self, kind: ReadKind, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, unseen: shadow.Unseen, value: Any, copy: DmaCopy | None = None,
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
            # A scan reads what its last step left at each step: the first of a row counts.
            limit = 2 * MAX_LATER if self.threads[thread.number].begins_row else MAX_LATER
            if kind == "stale" and len(known.later) < limit:
                later = self._noted(key, thread, step, region, found, unseen, copy)
                if later is not None:
                    known.later.append(later)
        self.alter(known, region, found, unseen, value)

    def _noted(
        self, key: SiteKey, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, unseen: shadow.Unseen, copy: DmaCopy | None,
    ) -> SuspectRead | None:  # fmt: skip
        buffer, kind = region.buffer, key[2]
        mask = found.where(region, lambda numbers: shadow.chosen(kind, numbers, unseen))
        if not mask.any():
            return None
        point, iterations = (
            (thread.point, thread.iterations) if copy is None else (copy.point, copy.iterations)
        )
        noted = SuspectRead(
            key, step, buffer, found.operand, self.count, thread.number,
            self.threads[thread.number].moment, point, iterations, mask,
            int(found.where(region).sum()), copy,
        )  # fmt: skip
        element, numbers = noted.element, found.numbers
        noted.writer = self.writes.get(int(found.whole if numbers is None else numbers[element]))
        noted.value = buffer.content[element].item()
        noted.visited = self.arrays.has_come_back(buffer)
        noted.is_early = self._is_early(buffer, mask)
        return noted

    def _is_early(self, buffer: MemoryBuffer, mask: shadow.Mask) -> bool:
        return any(
            mask[index].any()
            for _, copy, _ in self._flying.values()
            if copy.destination.buffer is buffer
            for index in copy.destination.ranges()
        )

    def alter(
        self,
        suspect: SuspectRead,
        region: MemoryRegion,
        found: BufferShadow,
        unseen: shadow.Unseen,
        value: Any,
    ) -> None:
        """Alter the values of a suspect read; a no-op except in replays."""

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        buffer = region.buffer
        found = self.shadows.get(buffer.number)
        if found is None:
            return
        if self._is_dynamic(step):
            self.trace = hash((self.trace, id(step), shadow.index_key(region)))
        state = self.threads[thread.number]
        mask = None
        if isinstance(step, ir.StoreStep) and step.mask is not None and not region.is_masked:
            mask = np.asarray(thread.frames[-1].registers[step.mask.number])
        is_watched = self.watched is None or self.watches(state, thread.point)
        if found.operand == "output":
            if is_watched and not state.begins_block:
                if state.has_carried:
                    self.arrays.carrying.add(id(step))
                elif mask is None:
                    self.arrays.replaces(self, thread, state, step, region, found, value)
            if self.keeps_results:
                stored = np.asarray(value).tobytes()
                self.results_so_far = hash((self.results_so_far, id(step), stored))
        self.stored.setdefault(buffer.name, {}).setdefault(id(step), step)
        found.write(region, self.record(thread, step) if is_watched else shadow.GIVEN, mask)

    def record(
        self, thread: Thread, step: ir.MachineStep, copy: DmaCopy | None = None, moment: int = 0
    ) -> int:
        """Assign a number to a write.

        Args:
          moment: moment at which the copy was started.
        """
        self.count = number = self.count + 1
        if copy is None:
            moment = self.threads[thread.number].moment
            written = WriteRecord(
                number, step, thread.number, thread.point, thread.iterations, moment
            )
        else:
            written = WriteRecord(
                number, step, copy.thread, copy.point, copy.iterations, moment, copy
            )
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
        if self._is_dynamic(copy.step):
            keys = shadow.index_key(copy.source), shadow.index_key(copy.destination)
            self.trace = hash((self.trace, id(copy.step), keys))
        state = self.threads[thread.number]
        self._flying[id(copy)] = thread, copy, state.moment
        target = copy.destination
        output = self.arrays.name_of_output(target.buffer)
        if output is not None:
            self.arrays.copy_starts(thread, copy)
        if output in state.arrays and target.buffer.device == thread.device:
            part = f"{output} (a view)"
            if target.index is not None:
                part = index_text(output, target.index)
            state.copies_out(output, part)
        if copy.source.buffer.device != target.buffer.device:
            # In another order of the run, the copy may have preceded a read on its device.
            for suspect in self.suspects.values():
                if suspect.buffer is target.buffer and suspect.kind == "unwritten":
                    found = (suspect.mask[index] for index in target.ranges())
                    suspect.is_sent_later |= any(part.any() for part in found)

    def copy_ends(self, copy: DmaCopy) -> None:
        thread, _, moment = self._flying.pop(id(copy))
        state = self.threads[copy.thread]
        is_watched = self.watches(state, copy.point)
        source = self.shadows.get(copy.source.buffer.number)
        if source is not None and not is_watched:
            self.arrays.copied_from(copy, self.writes, is_watched=False)
        elif source is not None:
            oldest = source.least(copy.source)
            if oldest <= shadow.NEVER:
                kind: ReadKind = "padding" if oldest == shadow.PADDING else "unwritten"
                self._suspect(
                    kind, thread, copy.step, copy.source, source, shadow.GIVEN, None, copy
                )
            elif oldest == shadow.GIVEN:
                state.has_carried |= self._may_carry(source)
            else:
                state.has_carried |= oldest < state.of_point
            self.arrays.copied_from(copy, self.writes, is_watched=True)
        target = self.shadows.get(copy.destination.buffer.number)
        if target is None:
            return
        if is_watched and target.buffer.kind in ("output", "input"):
            self.arrays.copied_to(self, copy, target)
        self.stored.setdefault(target.buffer.name, {}).setdefault(id(copy.step), copy.step)
        number = self.record(thread, copy.step, copy, moment) if is_watched else shadow.GIVEN
        target.write(copy.destination, number)
        if target.take_padding(copy):
            self.padded[target.buffer.number] = copy

    # Control

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        self.trace = hash((self.trace, id(step), chosen))

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if begins_moment(step):
            self.threads[thread.number].moment_begins(self.count + 1)
        if type(step) is ir.WhileLoop:
            self.trace = hash((self.trace, id(step), iteration))

    def ends(self) -> None:
        self.has_ended = True

    def _is_dynamic(self, step: ir.MachineStep) -> bool:
        found = self._dynamic.get(id(step))
        if found is None:
            found = self._dynamic[id(step)] = shadow.is_dynamic(step)
        return found

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
