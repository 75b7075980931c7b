"""Shadow memory: for each element of a buffer, the write that it comes from.

Writes are numbered in the order of the run. So the least number of a region tells at once whether
anything in it was never written, or was written before a certain moment. A buffer whose last write
covered it entirely has one number instead of an array: accesses of whole buffers cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.shadows.tiles import Mask as Mask
from pallas_debug.machine.sanitizer.shadows.tiles import Numbers as Numbers
from pallas_debug.machine.sanitizer.shadows.tiles import ShadowRoom, TiledNumbers

NEVER = 0
"""Number of elements that nothing has written."""

PADDING = -1
"""Number of the elements of a block that are outside of its array."""

GIVEN = 1
"""Number of elements that the call passed in, or that the pipeline copied from such; and of those
that a grid point wrote which is not watched."""

ReadKind = Literal["unwritten", "padding", "stale", "parallel"]
"""Memory that a read sees: never written, elements of a block outside of its array, what another
output block left, or what a grid point left that may have run on another core."""

_NEWEST = np.iinfo(np.int32).max


@dataclass(eq=False, slots=True, frozen=True)
class WriteRecord:
    """Writer of an element: a store or a DMA.

    Attributes:
      step: the store, or the start of the DMA.
      point, iterations: where the thread was.
      moment: of the thread, at which the store, or the start of the DMA, was.
      copy: the DMA; None for a store.
    """

    number: int
    step: ir.MachineStep
    thread: int
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    moment: int
    copy: DmaCopy | None = None


SiteKey = tuple[int, str, ReadKind]
"""A step, by its identity, the name of a buffer, and what it sees there."""


@dataclass(eq=False, slots=True)
class SuspectRead:
    """A step that reads what it may not be meant to see; whether that matters is not known yet.

    Attributes:
      first: number of the last write before the first such read.
      moment: of the thread, at which that was.
      mask: elements of the buffer that were seen then.
      total: number of elements that were read then.
      writer: of the first such element; None if nothing wrote it.
      values: of these elements, where they come from another block.
      visited: whether the buffer holds an output block that had left and come back.
      is_early: whether a DMA in flight was to write what was read: a race, which is judged apart.
      is_sent_later: whether another device started a DMA to it later: a race, unless ordered.
      is_element_known: whether the first element in `mask` is one that matters.
      without: the last of these elements, if it does not matter.
      count: number of such reads.
      later: such reads at later moments, of what another block left.
    """

    key: SiteKey
    step: ir.MachineStep
    buffer: MemoryBuffer
    operand: str
    first: int
    thread: int
    moment: int
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    mask: Mask
    total: int
    copy: DmaCopy | None = None
    writer: WriteRecord | None = None
    value: Any = None
    visited: bool = False
    is_early: bool = False
    is_sent_later: bool = False
    is_element_known: bool = True
    without: tuple[int, ...] | None = None
    count: int = 1
    later: list[SuspectRead] = field(default_factory=list)

    @property
    def kind(self) -> ReadKind:
        return self.key[2]

    @property
    def element(self) -> tuple[int, ...]:
        """The first element of the buffer that was seen."""
        return self.position(int(self.mask.argmax()))

    def position(self, number: int) -> tuple[int, ...]:
        """Index of an element of the buffer, by its number in row-major order."""
        return tuple(int(i) for i in np.unravel_index(number, self.mask.shape))


@dataclass(eq=False, slots=True)
class BufferShadow:
    """Numbers of the writes that a buffer's elements come from.

    Attributes:
      operand: kind of the operand that the buffer holds a block of, else of the buffer.
      whole: the number of all elements, where `numbers` is None.
      room: for tiles of the numbers; None if they are an array as large as the buffer.
    """

    buffer: MemoryBuffer
    operand: str
    whole: int = NEVER
    numbers: Numbers | TiledNumbers | None = None
    room: ShadowRoom | None = None

    def set(self, number: int) -> None:
        """All elements come from one write."""
        if isinstance(self.numbers, TiledNumbers):
            self.numbers.free()
        self.whole = number
        self.numbers = None

    def array(self) -> Numbers | TiledNumbers:
        """The numbers as an array, to be changed in place."""
        if self.numbers is None:
            shape = self.buffer.content.shape
            if self.room is not None:
                self.numbers = TiledNumbers(shape, self.whole, self.room)
            else:
                self.numbers = np.full(shape, self.whole, np.int32)
        return self.numbers

    def distinct(self) -> list[int]:
        """All numbers that elements have."""
        if isinstance(self.numbers, TiledNumbers):
            return list(self.numbers.values())
        return [self.whole] if self.numbers is None else np.unique(self.numbers).tolist()

    def all_with(self, number: int) -> Mask | None:
        """The elements of the buffer that have a number; None if there are none."""
        if self.numbers is None:
            return np.ones(self.buffer.content.shape, bool) if self.whole == number else None
        if isinstance(self.numbers, TiledNumbers):
            return self.numbers.where(number) if self.numbers.has(number) else None
        mask = self.numbers == number
        return mask if mask.any() else None

    def least(self, region: MemoryRegion) -> int:
        """The least number in a region."""
        numbers = self.numbers
        if numbers is None:
            return self.whole
        if region.index is not None:
            return _least(numbers[region.index])
        return min((_least(numbers[index]) for index in region.ranges()), default=_NEWEST)

    def of(self, region: MemoryRegion) -> Numbers | None:
        """The numbers of a region in its shape; None if they do not have it, as after a bitcast."""
        if self.numbers is None:
            return np.full(region_shape(region), self.whole, np.int32)
        return None if region.index is None else np.asarray(self.numbers[region.index])

    def write(self, region: MemoryRegion, number: int, mask: Mask | None = None) -> None:
        """The elements of a region, or those where a mask is true, come from a write."""
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
        """Mark what a copy filled with padding of its source's tiles; return whether it did.

        What is copied into the padding of another array is not in its buffer.
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
        """Elements of the buffer that a region selects, of those whose numbers pass a test."""
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


def covers(region: MemoryRegion) -> bool:
    """Whether a region is its whole buffer."""
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
    """Shape of the value that a region holds."""
    if region.index is None and region.existing is None:
        return tuple(region.view.shape)
    return region.shape


def is_dynamic(step: ir.MachineStep) -> bool:
    """Whether what a step accesses depends on a value."""
    places = [getattr(step, name, None) for name in ("place", "source", "destination")]
    for place in places:
        for part in () if place is None else place.view:
            for entry in part.entries if isinstance(part, ir.Index) else ():
                numbers = (entry.start, entry.size) if isinstance(entry, ir.Slice) else (entry,)
                if any(isinstance(number, ir.Reg) for number in numbers):
                    return True
    return False


def index_key(region: MemoryRegion) -> int:
    """Hash of the elements that a region selects."""
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


Unseen = int | Callable[[Numbers], Mask]
"""Numbers of writes that a read should not see: those below one, or that pass a test."""


def chosen(kind: ReadKind, numbers: Numbers, unseen: Unseen) -> Mask:
    """Elements that a read of some kind should not see."""
    if kind == "padding":
        return np.asarray(numbers == PADDING)
    if kind == "unwritten":
        return np.asarray(numbers == NEVER)
    is_unseen = unseen(numbers) if callable(unseen) else numbers < unseen
    return np.asarray((numbers > GIVEN) & is_unseen)
