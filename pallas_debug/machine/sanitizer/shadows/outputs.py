"""Ledger of whole arrays: revisited blocks, lost writes, and late reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.aliased import AliasedCopies, shared_by
from pallas_debug.machine.sanitizer.shadows.flow import ValueFlow
from pallas_debug.machine.sanitizer.shadows.shadow import (
    BufferShadow,
    Mask,
    Numbers,
    WriteChange,
    WriteRecord,
    differing,
)
from pallas_debug.machine.threads import Thread

if TYPE_CHECKING:
    from pallas_debug.machine.sanitizer.shadows.tracked import TrackedThread
    from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker

Point = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(eq=False, slots=True)
class BlockReturn:
    """An output block that is revisited after another one.

    Attributes:
      first, last: grid points of the previous visit.
      matters: whether the revisit changes the block.
    """

    window: Window
    block: Point
    first: Point
    last: Point
    again: Point
    matters: bool = False


@dataclass(eq=False, slots=True)
class ReplacedWrite:
    """A write to an output that another write replaces with other values.

    Attributes:
      operand: name of the output, or of the array that shares its memory.
      buffer: memory of the output.
      before: the replaced write.
      step, point, iterations, copy: those of the write that replaces it.
      mask: elements of the buffer whose values have changed.
      blocks: blocks of this write and of the previous one, if they differ.
    """

    operand: str
    buffer: MemoryBuffer
    before: WriteRecord
    step: ir.MachineStep
    thread: int
    point: Point
    iterations: Point
    mask: Mask
    change: WriteChange
    copy: DmaCopy | None = None
    blocks: tuple[Point, Point] | None = None
    window: Window | None = None


@dataclass(eq=False, slots=True)
class OverwrittenBlock:
    """Elements of a fetched block whose memory was or is being overwritten.

    Attributes:
      mask: these elements of the window.
      numbers: numbers of the writes, in the window's shape.
      is_under_way: whether fetch and write-back may happen in either order.
      writers: grid points that wrote back, if known.
    """

    window: Window
    block: Point
    mask: Mask
    numbers: Numbers
    is_under_way: bool


@dataclass(eq=False, slots=True)
class OverwrittenRead:
    """The first read of an overwritten block by a step."""

    step: ir.MachineStep
    point: Point
    iterations: Point
    block: OverwrittenBlock
    region: MemoryRegion
    element: Point
    affected: int
    total: int
    value: Any


@dataclass(eq=False, slots=True)
class _SharedArray:
    """An array that is both input and output.

    Attributes:
      output: name of the output.
      read: elements whose original values were fetched.
      given: contents at the start of the run.
      recent: grid positions and slices of the last write-backs.
    """

    output: str
    read: Mask
    given: Any
    recent: list[tuple[int, Slices]] = field(default_factory=list)


class ArrayLedger:
    """Events that concern whole arrays.

    Attributes:
      returns: output blocks that were revisited, the first of each output.
      lost: writes to an output's block that the next visit replaces, by step.
      carrying: steps that write to a block already visited, at a grid point that has read what an
        earlier one wrote: the last value of a running state is the result.
      conflicts: writes of several grid points to one element, by step.
      overwritten: reads of blocks that were overwritten.
      copies: copies of arrays that are both input and output.
    """

    def __init__(self, launch: Launch, flow: ValueFlow) -> None:
        self.copies = AliasedCopies(flow)
        self.returns: dict[str, BlockReturn] = {}
        self.lost: dict[int, ReplacedWrite] = {}
        self.carrying: set[int] = set()
        self.conflicts: dict[int, ReplacedWrite] = {}
        self.overwritten: dict[tuple[int, str], OverwrittenRead] = {}
        self._launch = launch
        self._lanes = tuple(i for i, parallel in enumerate(launch.parallel) if parallel)
        self._seen: dict[tuple[int, Point], list[Point]] = {}
        self._came_back: dict[int, BlockReturn] = {}
        self._shared: dict[int, _SharedArray] = {}
        self._marked: dict[int, OverwrittenBlock] = {}
        self._shadows: Mapping[int, BufferShadow] = {}
        self._flow = flow
        self._in_plain_loop: dict[int, bool] = {}

    def begins(self, shadows: Mapping[int, BufferShadow]) -> None:
        """Handle the start of a thread: find the arrays that are both input and output."""
        self._shadows = shadows
        outputs = shared_by(self._launch)
        for found in list(shadows.values()):
            buffer = found.buffer
            is_shared = buffer.kind == "input" and buffer.name in outputs
            if is_shared and buffer.number not in self._shared:
                read = np.zeros(buffer.content.shape, bool)
                self._shared[buffer.number] = _SharedArray(
                    outputs[buffer.name], read, buffer.content.copy()
                )

    def is_shared(self, name: str) -> bool:
        """Return whether an array of this name is both input and output."""
        return any(self._shadows[n].buffer.name == name for n in self._shared)

    def result_in(self, buffer: MemoryBuffer) -> str | None:
        """Return the output that a whole array holds, or shares with an input; None if none."""
        if buffer.kind == "output":
            return buffer.name
        shared = self._shared.get(buffer.number)
        return None if shared is None else shared.output

    def is_same_lane(self, a: Point, b: Point) -> bool:
        """Return whether two grid points have the same coordinates along parallel axes."""
        return all(a[i] == b[i] for i in self._lanes)

    # Visits of output blocks

    def visits(self, window: Window, block: Point, point: Point) -> None:
        """Handle a grid point whose output block differs from the previous one."""
        slot = window.current.number
        self._came_back.pop(slot, None)
        if window.spec.revisits:
            self._seen[id(window), block] = [point, point]
            return  # it is read back
        before = self._seen.get((id(window), block))
        if before is not None and self.is_same_lane(before[1], point):
            self._came_back[slot] = BlockReturn(window, block, before[0], before[1], point)
        self._seen[id(window), block] = [point, point]

    def stays(self, window: Window, block: Point, point: Point) -> None:
        self._seen[id(window), block][1] = point

    def has_come_back(self, buffer: MemoryBuffer) -> bool:
        """Return whether the window holds a block that had been written back earlier."""
        return buffer.number in self._came_back

    def written_back(
        self, tracker: MemoryTracker, thread: Thread, window: Window, block: Point, position: int,
        windows: Sequence[Window], *, is_watched: bool = True,
    ) -> None:  # fmt: skip
        """Handle a write-back of a block, before it; an unwatched one counts as given."""
        outer, inner = window.bounds(block)
        slot, array = window.current, window.array
        found, target = self._shadows[slot.number], self._shadows[array.number]
        old = array.content[outer]
        new = slot.content[inner].reshape(old.shape)
        back = self._came_back.get(slot.number)
        if not is_watched:
            pass
        elif back is not None:
            name = window.operand.name
            back.matters = bool(differing(old, new).any())
            if back.matters:
                self.returns.setdefault(name, back)
        elif window.spec.unit != window.spec.sizes and target.numbers is not None:
            self._overlaps(tracker, thread, window, block, outer, inner)
        if not is_watched:
            if target.numbers is not None or target.whole != shadow.GIVEN:
                target.array()[outer] = shadow.GIVEN
        elif found.numbers is None and old.size == array.content.size:
            target.set(found.whole)
        else:
            numbers = found.whole if found.numbers is None else found.numbers[inner]
            target.array()[outer] = np.reshape(numbers, old.shape) if np.ndim(numbers) else numbers
        shared = self._shared.get(array.number)
        if shared is not None:
            shared.recent = [*shared.recent[-3:], (position, outer)]
            for other in windows:
                if other.operand.kind == "input" and other.array is array:
                    self._catches(other, outer, old, new, target)

    def _overlaps(
        self, tracker: MemoryTracker, thread: Thread, window: Window, block: Point, outer: Slices,
        inner: Slices,
    ) -> None:  # fmt: skip
        """Check overlapping blocks of one output: whether both write different values."""
        slot, array = window.current, window.array
        found, target = self._shadows[slot.number], self._shadows[array.number]
        old, before = array.content[outer], target.array()[outer]
        new = slot.content[inner].reshape(old.shape)
        numbers = found.array()[inner].reshape(old.shape)
        mask = differing(old, new) & (before > shadow.GIVEN) & (numbers > shadow.GIVEN)
        if not mask.any():
            return
        spot = shadow.first_in(mask)
        here, there = tracker.writes.get(int(numbers[spot])), tracker.writes.get(int(before[spot]))
        if here is None or there is None or here.step is not there.step:
            return
        if not self.is_same_lane(here.point, there.point):
            return
        affected = np.zeros(array.content.shape, bool)
        affected[outer] = mask
        other = next(
            (b for (key, b), (first, last) in self._seen.items()
             if key == id(window) and b != block and first <= there.point <= last),
            None,
        )  # fmt: skip
        self.conflicts.setdefault(
            id(here.step),
            ReplacedWrite(
                window.operand.name, array, there, here.step, thread.number, here.point,
                here.iterations, affected, shadow.change_in(affected, mask, old, new),
                blocks=None if other is None else (block, other), window=window,
            ),
        )  # fmt: skip

    # Arrays that are both input and output

    def fetched(
        self, window: Window, block: Point, outer: Slices, inner: Slices, slot: MemoryBuffer,
        position: int,
    ) -> None:  # fmt: skip
        """Handle a fetch of a block at the beginning of the grid point at this position."""
        self._marked.pop(slot.number, None)
        shared = self._shared.get(window.array.number)
        if shared is None:
            return
        found = self._shadows[window.array.number]
        numbers = found.array()[outer]
        late = np.zeros(window.array.content.shape, bool)
        for written, part in shared.recent:
            if written == position - 1:  # the write-back may still be in progress
                late[part] = True
        is_under_way = bool((late[outer] & (numbers > shadow.GIVEN)).any())
        mask = (numbers > shadow.GIVEN) & (late[outer] | ~shared.read[outer])
        shared.read[outer] |= numbers <= shadow.GIVEN
        if mask.any():
            self._mark(window, block, slot, inner, mask, numbers, is_under_way)

    def _mark(
        self, window: Window, block: Point, slot: MemoryBuffer, inner: Slices, mask: Mask,
        numbers: Numbers, is_under_way: bool,
    ) -> None:  # fmt: skip
        of_slot = np.zeros(slot.content.shape, bool)
        by_slot = np.zeros(slot.content.shape, np.int32)
        of_slot[inner] = mask.reshape(of_slot[inner].shape)
        by_slot[inner] = numbers.reshape(by_slot[inner].shape)
        self._marked[slot.number] = OverwrittenBlock(window, block, of_slot, by_slot, is_under_way)

    def _catches(
        self, window: Window, outer: Slices, old: Any, new: Any, target: BufferShadow
    ) -> None:
        """Handle a write-back while an overlapping block has been prefetched."""
        block = window.next_block
        if block is None or block == window.block or len(window.slots) < 2:
            return
        theirs, inner = window.bounds(block)
        changed = np.zeros(window.array.content.shape, bool)
        changed[outer] = differing(old, new)
        mask = changed[theirs]
        if mask.any():
            slot = window.slots[(window.slot + 1) % len(window.slots)]
            self._mark(window, block, slot, inner, mask, target.array()[theirs], True)

    def reads_overwritten(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Handle a load from an input's block, whose memory may have been overwritten."""
        marked = self._marked.get(region.buffer.number)
        if marked is None:
            return
        key = id(step), marked.window.operand.name
        if key in self.overwritten:
            return
        selected = self._shadows[region.buffer.number].where(region)
        mask = selected & marked.mask
        if not mask.any():
            return
        element = shadow.first_in(mask)
        self.overwritten[key] = OverwrittenRead(
            step, thread.point, thread.iterations, marked, region, element, int(mask.sum()),
            int(selected.sum()), region.buffer.content[element].item(),
        )  # fmt: skip

    def numbers(self) -> list[Numbers]:
        """Arrays of write numbers that are kept here."""
        kept = [marked.numbers for marked in self._marked.values()]
        return kept + [read.block.numbers for read in self.overwritten.values()]

    def name_of_output(self, array: MemoryBuffer) -> str | None:
        """Name of the output whose array this buffer is; None if it is none."""
        if array.kind == "output":
            return array.name
        return self.output_of(array) if array.number in self._shared else None

    def output_of(self, array: MemoryBuffer) -> str:
        """Name of the output that shares an input's array."""
        return self._shared[array.number].output

    # Writes that replace other writes

    def replaces(
        self, tracker: MemoryTracker, thread: Thread, state: TrackedThread, step: ir.MachineStep,
        region: MemoryRegion, found: BufferShadow, value: Any,
    ) -> None:  # fmt: skip
        """Handle a store to an output block at a grid point without reads of earlier writes."""
        if id(step) in self.lost:
            return
        numbers = found.of(region)
        if numbers is None:
            return
        mask = (numbers > shadow.GIVEN) & (numbers < state.of_point)
        if not mask.any():
            return
        old = region.read()
        new = np.broadcast_to(np.asarray(value), old.shape).astype(old.dtype)
        mask = mask & differing(old, new)
        if not mask.any():
            return
        spot = shadow.first_in(mask)
        before = tracker.writes.get(int(numbers[spot]))
        if before is None or before.step is not step:
            return
        if not self.is_same_lane(before.point, thread.point):
            return
        window = next((w for w in state.outputs if w.current is region.buffer), None)
        changed = spread(region, mask)
        self.lost[id(step)] = ReplacedWrite(
            region.buffer.name, region.buffer, before, step, thread.number, thread.point,
            thread.iterations, changed, shadow.change_in(changed, mask, old, new), window=window,
        )  # fmt: skip

    def copied_from(
        self, copy: DmaCopy, writes: Mapping[int, WriteRecord], *, is_watched: bool
    ) -> None:
        """Handle a read by a DMA."""
        buffer = copy.source.buffer
        shared = self._shared.get(buffer.number)
        if shared is not None:
            found = self._shadows[buffer.number]
            if is_watched and found.room is None:
                self.copies.reads(copy, found, shared.output, shared.given, shared.read, writes)
            for index in copy.source.ranges():
                shared.read[index] = True

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        """Handle the start of a DMA to an output."""
        key = id(copy.step)
        if key not in self._in_plain_loop:
            numbers = reach.registers_of(copy.step.destination.view)
            self._in_plain_loop[key] = not (
                copy.adds
                or reach.depends_on_data(thread.frames)
                or reach.repeats_on_data(thread.frames)
                or any(any(reach.sources(thread.frames, number)) for number in numbers)
            )

    def _is_in_plain_loop(self, copy: DmaCopy) -> bool:
        """Return whether a DMA's iterations depend on no data, and it copies no running state.

        If data decide where it writes, the next one may replace what it writes past its rows.
        """
        name = copy.source.buffer.name
        return self._in_plain_loop.get(id(copy.step), False) and not self._flow.is_state(name)

    def copied_to(self, tracker: MemoryTracker, copy: DmaCopy, found: BufferShadow) -> None:
        """Handle a DMA to a whole array, before it writes."""
        region = copy.destination
        if copy.adds or id(copy.step) in self.conflicts:
            return
        if found.whole == shadow.GIVEN and (found.numbers is None or found.buffer.kind == "input"):
            return
        numbers = found.of(region)
        if numbers is None or int(numbers.max(initial=0)) <= shadow.GIVEN:
            return
        old, new = region.read(), copy.source.read()
        if old.shape != numbers.shape or new.size != old.size:
            return
        new = new.reshape(old.shape)
        mask = (numbers > shadow.GIVEN) & differing(old, new)
        if not mask.any() or _is_fill(old, new):
            return
        spot = shadow.first_in(mask)
        before = tracker.writes.get(int(numbers[spot]))
        if before is None or not (before.step is copy.step or _is_line_of(before, copy)):
            return
        if before.thread != copy.thread or not self.is_same_lane(before.point, copy.point):
            return
        last, state = before.copy, tracker.threads[copy.thread]
        is_same = last is not None and (
            shadow.index_key(last.destination) == shadow.index_key(region)
        )
        if before.point == copy.point:
            if not is_same or not self._is_in_plain_loop(copy):
                return
        elif is_same and state.has_carried:
            return  # each grid point updates it, and the last value is the result
        shared = self._shared.get(region.buffer.number)
        changed = spread(region, mask)
        self.conflicts[id(copy.step)] = ReplacedWrite(
            region.buffer.name if shared is None else shared.output, region.buffer, before,
            copy.step, copy.thread, copy.point, copy.iterations, changed,
            shadow.change_in(changed, mask, old, new), copy=copy,
        )  # fmt: skip


def _is_line_of(before: WriteRecord, copy: DmaCopy) -> bool:
    """Return whether a write is an earlier copy of a buffer by a line, as in an unrolled loop."""
    last, line = before.copy, copy.step.site.line
    if last is None or line is None or before.step.site.line != line:
        return False
    return last.source.buffer.name == copy.source.buffer.name


def _is_fill(old: np.ndarray, new: np.ndarray) -> bool:
    """Return whether all replaced values are equal, as for rows without data, and others not."""
    return bool((old == old.flat[0]).all() and (new != new.flat[0]).any())


def spread(region: MemoryRegion, mask: Mask) -> Mask:
    """Expand a mask of a region to a mask of its buffer."""
    assert region.index is not None
    found = np.zeros(region.buffer.content.shape, bool)
    found[region.index] = mask
    return found
