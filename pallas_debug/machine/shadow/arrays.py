"""Ledger of whole arrays: revisited blocks, and blocks overwritten before they are fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.shadow import BufferShadow, Mask, WriteRecord, differing
from pallas_debug.machine.threads import Thread

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
        self._came_back: dict[int, BlockReturn] = {}
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
        self._came_back.pop(slot, None)
        if before and not window.spec.revisits:
            self._came_back[slot] = BlockReturn(window, block, before[0], before[-1], point)

    def came_back(self, buffer: MemoryBuffer) -> BlockReturn | None:
        """Return the revisit of the block in a window; None if it is a first visit."""
        return self._came_back.get(buffer.number)

    def returned(self, window: Window, block: Point) -> None:
        """Handle a write-back of a block, before it: a revisit loses what it does not write."""
        back = self._came_back.get(window.current.number)
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
