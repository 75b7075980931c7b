"""Ledger of whole arrays: revisited blocks, and blocks overwritten before they are fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.shadow import BufferShadow, Mask, Numbers, differing
from pallas_debug.machine.threads import Thread

Point = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(eq=False, slots=True)
class BlockReturn:
    """An output block that is revisited after another one.

    Attributes:
      first, last: grid points of the previous visit.
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
      recent: grid positions and slices of the last write-backs.
    """

    output: str
    read: Mask
    recent: list[tuple[int, Slices]] = field(default_factory=list)


class ArrayLedger:
    """Events that concern whole arrays.

    Attributes:
      returns: revisits of output blocks that lose what was written before, the first of each
        output.
      overwritten: reads of blocks that were overwritten.
    """

    def __init__(self, launch: Launch) -> None:
        self.returns: dict[str, BlockReturn] = {}
        self.overwritten: dict[tuple[int, str], OverwrittenRead] = {}
        self._launch = launch
        self._lanes = tuple(i for i, parallel in enumerate(launch.parallel) if parallel)
        self._seen: dict[tuple[int, Point], list[Point]] = {}
        self._came_back: dict[int, BlockReturn] = {}
        self._shared: dict[int, _SharedArray] = {}
        self._marked: dict[int, OverwrittenBlock] = {}
        self._shadows: Mapping[int, BufferShadow] = {}

    def begins(self, shadows: Mapping[int, BufferShadow]) -> None:
        """Handle the start of a thread: find the arrays that are both input and output."""
        self._shadows = shadows
        outputs = shared_by(self._launch)
        for found in list(shadows.values()):
            buffer = found.buffer
            is_shared = buffer.kind == "input" and buffer.name in outputs
            if is_shared and buffer.number not in self._shared:
                read = np.zeros(buffer.content.shape, bool)
                self._shared[buffer.number] = _SharedArray(outputs[buffer.name], read)

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

    def came_back(self, buffer: MemoryBuffer) -> BlockReturn | None:
        """Return the revisit of the block in a window; None if it is a first visit."""
        return self._came_back.get(buffer.number)

    def written_back(
        self, window: Window, block: Point, position: int, windows: Sequence[Window], *,
        is_watched: bool = True,
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
            # What this visit has not written is lost; a visit may also write the whole block again.
            whole = np.broadcast_to(found.whole, slot.content.shape)
            written = whole[inner] if found.numbers is None else found.numbers[inner]
            is_left_out = np.reshape(written, old.shape) <= shadow.NEVER
            if (differing(old, new) & is_left_out).any():
                self.returns.setdefault(window.operand.name, back)
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

    def output_of(self, array: MemoryBuffer) -> str:
        """Name of the output that shares an input's array."""
        return self._shared[array.number].output

    def copied_from(self, copy: DmaCopy) -> None:
        """Handle a read by a DMA."""
        shared = self._shared.get(copy.source.buffer.number)
        if shared is not None:
            for index in copy.source.ranges():
                shared.read[index] = True


def shared_by(launch: Launch) -> dict[str, str]:
    """Names of the outputs that share memory with inputs, by the names of these."""
    given = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
    return {
        given[operand.alias].name: operand.name
        for operand in launch.operands
        if operand.kind == "output" and operand.alias is not None
    }
