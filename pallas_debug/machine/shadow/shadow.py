"""Shadow memory: the write that each element of a buffer comes from.

Writes are numbered in the order of the run. So the smallest number in a region shows immediately
whether any element was never written, or was written before a certain step. A buffer whose last
write covered it entirely has one number instead of an array, so whole-buffer accesses are cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion

if TYPE_CHECKING:
    from pallas_debug.machine.shadow.tracking import BlockReturn

Numbers = np.ndarray[Any, np.dtype[np.int32]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
NumberTest = Callable[[Numbers], Mask]
Index = tuple[Entry, ...]

NEVER = -1
"""Number of elements that were never written."""

PADDING = -2
"""Number of elements of a block that are outside its array."""

GIVEN = 0
"""Number of elements that the call passed in, or that the pipeline copied from those."""

ReadKind = Literal["unwritten", "padding", "other core"]
"""Memory that a read sees: never written, elements of a block outside its array, or left by a grid
point that may have run on another core."""

_NEWEST = np.iinfo(np.int32).max


@dataclass(eq=False, slots=True, frozen=True)
class WriteRecord:
    """Writer of an element: a store or a DMA.

    Attributes:
      step: the store, or the start of the DMA.
      point, iterations: position of the thread.
      copy: the DMA; None for a store.
    """

    number: int
    step: ir.MachineStep
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    copy: DmaCopy | None = None


SiteKey = tuple[int, str, ReadKind]
"""Identity of a step, name of a buffer, and kind of memory that the step sees there."""


@dataclass(eq=False, slots=True)
class SuspectRead:
    """A read of memory that may not be meant for it; whether it matters is not known yet.

    Attributes:
      first: number of the last write before the first such read.
      mask: elements of the buffer seen by that read.
      total: number of elements read.
      writer: writer of the first such element; None if it was never written.
      back: the revisit, if the buffer holds an output block that is revisited.
      is_early: whether a DMA to these elements was in flight, or another device started one later:
        a race, unless they are ordered.
    """

    key: SiteKey
    step: ir.MachineStep
    buffer: MemoryBuffer
    first: int
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    mask: Mask
    total: int
    copy: DmaCopy | None
    writer: WriteRecord | None
    back: BlockReturn | None
    is_early: bool = False

    @property
    def kind(self) -> ReadKind:
        return self.key[2]

    @property
    def element(self) -> tuple[int, ...]:
        """First element of the buffer that was seen."""
        return first_in(self.mask)


@dataclass(eq=False, slots=True)
class BufferShadow:
    """Write numbers of a buffer's elements.

    Attributes:
      operand: kind of the operand whose block the buffer holds, otherwise of the buffer.
      whole: number of all elements, if `dense` is None.
      dense: numbers of the elements.
    """

    buffer: MemoryBuffer
    operand: str
    whole: int = NEVER
    dense: Numbers | None = None

    @property
    def numbers(self) -> Numbers:
        """Numbers of all elements, for reading."""
        if self.dense is not None:
            return self.dense
        return np.broadcast_to(np.int32(self.whole), self.buffer.content.shape)

    def fill(self, number: int) -> None:
        """Set the number of all elements."""
        self.whole, self.dense = number, None

    def put(self, index: Index, numbers: Any, mask: Mask | None = None) -> None:
        """Set the numbers of the elements at an index, or only of those where a mask is true."""
        shape, is_number = self.buffer.content.shape, mask is None and np.ndim(numbers) == 0
        if mask is not None:
            before = self.numbers[index]
            numbers = np.where(np.broadcast_to(mask, before.shape), numbers, before)
        if is_number and self.dense is None and self.whole == numbers:
            return
        if is_number and covers(index, shape):
            self.fill(int(numbers))
            return
        if self.dense is None:
            self.dense = np.full(shape, self.whole, np.int32)
        self.dense[index] = numbers

    def part(self, index: Index, sizes: tuple[int, ...]) -> Any:
        """Return the numbers at an index as an array of these sizes, or the number of them all."""
        return self.whole if self.dense is None else self.dense[index].reshape(sizes)

    def distinct(self) -> set[int]:
        """Distinct numbers of writes to the elements."""
        if self.dense is None:
            return {self.whole}
        flat, found = self.dense.reshape(-1), set[int]()
        for start in range(0, flat.size, 1 << 20):
            part = flat[start : start + (1 << 20)]
            found.update(np.unique(part[part > GIVEN]).tolist())
        return found

    def unwritten(self) -> Mask | None:
        """Return a mask of the elements that were never written; None if there are none."""
        if self.dense is None and self.whole != NEVER:
            return None
        mask = np.asarray(self.numbers == NEVER)
        return mask if mask.any() else None

    def least(self, region: MemoryRegion) -> int:
        """Return the smallest number in a region."""
        if self.dense is None:
            return self.whole
        if region.index is not None:
            return _least(self.dense[region.index])
        return min((_least(self.dense[index]) for index in region.ranges()), default=_NEWEST)

    def of(self, region: MemoryRegion) -> Numbers | None:
        """Return the numbers of a region in its shape; None if that differs, as after a bitcast."""
        if self.dense is None:
            return np.full(region_shape(region), self.whole, np.int32)
        return None if region.index is None else np.asarray(self.dense[region.index])

    def write(self, region: MemoryRegion, number: int, mask: Mask | None = None) -> None:
        """Set the number of a region's elements, or only of those where a mask is true."""
        if region.index is not None:
            self.put(region.index, number, mask)
            return
        for index in region.ranges():
            self.put(index, number)

    def take_padding(self, copy: DmaCopy) -> bool:
        """Mark elements that a copy fills with padding of its source; return whether there are any.

        Padding that is copied to the padding of another array is not in its buffer.
        """
        source, target = copy.source, copy.destination
        if source.existing is None:
            return False
        is_padding = np.ones(source.shape, bool)
        is_padding[source.existing] = False
        is_padding = is_padding.reshape(region_shape(target))
        if target.existing is not None:
            is_padding = is_padding[target.existing]
        if target.index is not None:
            self.write(target, PADDING, is_padding)
        else:
            positions = target.positions()
            if positions is None:
                return False
            self.put(np.unravel_index(positions[is_padding], self.buffer.content.shape), PADDING)
        return bool(is_padding.any())

    def where(self, region: MemoryRegion, test: NumberTest | None = None) -> Mask:
        """Return the elements of the buffer selected by a region, if their numbers pass a test."""
        selected = np.zeros(self.buffer.content.shape, bool)
        for index in region.ranges():
            selected[index] = True if test is None else test(np.asarray(self.numbers[index]))
        return selected


def _least(part: Any) -> int:
    if type(part) is not np.ndarray:
        return int(part)
    return int(part.min()) if part.size else _NEWEST


def differing(a: Any, b: Any) -> Mask:
    """Mask of elements of two arrays of one dtype and shape that differ in any bit."""
    bits = f"u{a.dtype.itemsize}" if a.dtype.itemsize <= 8 else None
    if bits is None:
        return np.asarray(a != b)
    one, other = np.ascontiguousarray(a).view(bits), np.ascontiguousarray(b).view(bits)
    return np.asarray(one != other).reshape(a.shape)


def first_in(mask: Mask) -> tuple[int, ...]:
    """Return the first element of a mask that is true."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def covers(index: tuple[Entry, ...], shape: tuple[int, ...]) -> bool:
    """Return whether an index selects a whole array, in order."""
    for entry, n in zip(index, shape, strict=True):
        if isinstance(entry, slice):
            if entry.start or entry.stop != n or (entry.step or 1) != 1:
                return False
        elif isinstance(entry, np.ndarray) or n != 1:
            return False
    return True


def region_shape(region: MemoryRegion) -> tuple[int, ...]:
    """Return the shape of a region's value."""
    if region.index is None and region.existing is None:
        return tuple(region.view.shape)
    return region.shape


def index_key(region: MemoryRegion) -> int:
    """Hash the elements that a region selects."""
    parts: list[Any] = []
    for index in region.ranges():
        for entry in index:
            if isinstance(entry, slice):
                parts += (entry.start, entry.stop, entry.step)
            elif isinstance(entry, np.ndarray):
                parts.append(entry.tobytes())
            else:
                parts.append(int(entry))
    return hash(tuple(parts))
