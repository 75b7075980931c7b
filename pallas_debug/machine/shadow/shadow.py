"""Shadow memory: the write that each element of a buffer comes from.

Writes are numbered in the order of the run. So the smallest number in a region shows immediately
whether any element was never written, or was written before a certain moment. A buffer whose last
write covered it entirely has one number instead of an array, so whole-buffer accesses are cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.shadow.tiles import Mask as Mask
from pallas_debug.machine.shadow.tiles import Numbers as Numbers
from pallas_debug.machine.shadow.tiles import ShadowRoom, TiledNumbers

if TYPE_CHECKING:
    from pallas_debug.machine.shadow.arrays import BlockReturn

NEVER = 0
"""Number of elements that were never written."""

PADDING = -1
"""Number of elements of a block that are outside its array."""

GIVEN = 1
"""Number of elements that the call passed in, or that the pipeline copied from those; and of
elements written by unwatched grid points."""

ReadKind = Literal["unwritten", "padding", "parallel"]
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
    thread: int
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
      is_early: whether a DMA in flight was to write these elements: a race, which is judged
        separately.
      is_sent_later: whether another device later started a DMA to them: a race, unless ordered.
      count: number of such reads.
    """

    key: SiteKey
    step: ir.MachineStep
    buffer: MemoryBuffer
    operand: str
    first: int
    thread: int
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    mask: Mask
    total: int
    copy: DmaCopy | None = None
    writer: WriteRecord | None = None
    back: BlockReturn | None = None
    is_early: bool = False
    is_sent_later: bool = False
    count: int = 1

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
      whole: number of all elements, if `numbers` is None.
      room: room for tiles of the numbers; None if they are an array as large as the buffer.
    """

    buffer: MemoryBuffer
    operand: str
    whole: int = NEVER
    numbers: Numbers | TiledNumbers | None = None
    room: ShadowRoom | None = None

    def set(self, number: int) -> None:
        """Set the number of all elements."""
        if isinstance(self.numbers, TiledNumbers):
            self.numbers.free()
        self.whole = number
        self.numbers = None

    def array(self) -> Numbers | TiledNumbers:
        """Return the numbers as an array, for changes in place."""
        if self.numbers is None:
            shape = self.buffer.content.shape
            if self.room is not None:
                self.numbers = TiledNumbers(shape, self.whole, self.room)
            else:
                self.numbers = np.full(shape, self.whole, np.int32)
        return self.numbers

    def distinct(self) -> list[int]:
        """Distinct numbers of the elements."""
        if isinstance(self.numbers, TiledNumbers):
            return list(self.numbers.values())
        return [self.whole] if self.numbers is None else np.unique(self.numbers).tolist()

    def all_with(self, number: int) -> Mask | None:
        """Return a mask of the elements with this number; None if there are none."""
        if self.numbers is None:
            return np.ones(self.buffer.content.shape, bool) if self.whole == number else None
        if isinstance(self.numbers, TiledNumbers):
            return self.numbers.where(number) if self.numbers.has(number) else None
        mask = self.numbers == number
        return mask if mask.any() else None

    def least(self, region: MemoryRegion) -> int:
        """Return the smallest number in a region."""
        numbers = self.numbers
        if numbers is None:
            return self.whole
        if region.index is not None:
            return _least(numbers[region.index])
        return min((_least(numbers[index]) for index in region.ranges()), default=_NEWEST)

    def of(self, region: MemoryRegion) -> Numbers | None:
        """Return the numbers of a region in its shape; None if that differs, as after a bitcast."""
        if self.numbers is None:
            return np.full(region_shape(region), self.whole, np.int32)
        return None if region.index is None else np.asarray(self.numbers[region.index])

    def write(self, region: MemoryRegion, number: int, mask: Mask | None = None) -> None:
        """Set the number of a region's elements, or only of those where a mask is true."""
        if mask is None and covers(region):
            self.set(number)
            return
        if self.numbers is None and self.whole == number:
            return
        numbers = self.array()
        if region.index is None:
            for index in region.ranges():
                numbers[index] = number
        elif mask is None:
            numbers[region.index] = number
        else:
            before = numbers[region.index]
            numbers[region.index] = np.where(np.broadcast_to(mask, before.shape), number, before)

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
            if positions is None or self.room is not None:
                return False
            numbers = np.asarray(self.array())
            numbers.reshape(-1)[positions[is_padding]] = PADDING
        return bool(is_padding.any())

    def where(self, region: MemoryRegion, test: Callable[[Numbers], Mask] | None = None) -> Mask:
        """Return the elements of the buffer selected by a region, if their numbers pass a test."""
        selected = np.zeros(self.buffer.content.shape, bool)
        for index in region.ranges():
            if test is None:
                selected[index] = True
            elif self.numbers is None:
                selected[index] = test(np.full((), self.whole, np.int32))
            else:
                selected[index] = test(np.asarray(self.numbers[index]))
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


def plain_number(value: Any) -> Any:
    """Convert a scalar of a dtype that Python lacks, such as bfloat16, to a float."""
    return value if isinstance(value, (int, float, complex, bool, type(None))) else float(value)


def first_in(mask: Mask) -> tuple[int, ...]:
    """Return the first element of a mask that is true."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def covers(region: MemoryRegion) -> bool:
    """Return whether a region covers its whole buffer."""
    index = region.index
    if index is None:
        return False
    if not region.chain:
        return True
    for entry, n in zip(index, region.buffer.content.shape, strict=True):
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


Unseen = Callable[[Numbers], Mask]
"""Test for numbers of writes by grid points that may have run on another core."""


def chosen(kind: ReadKind, numbers: Numbers, unseen: Unseen | None) -> Mask:
    """Return the elements that a read of this kind should not see."""
    if kind == "padding":
        return np.asarray(numbers == PADDING)
    if kind == "unwritten":
        return np.asarray(numbers == NEVER)
    assert unseen is not None
    return np.asarray((numbers > GIVEN) & unseen(numbers))
