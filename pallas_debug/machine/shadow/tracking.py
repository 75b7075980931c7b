"""Tracker of writes: the writer of each value read, and reads of values not meant for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
    NumberTest,
    ReadKind,
    SiteKey,
    SuspectRead,
    WriteRecord,
)
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]

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
            int(found.where(region).sum()), copy, writer, self.arrays.came_back(buffer),
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
