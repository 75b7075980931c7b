"""Simulated memory: buffers, references to them, and views of references."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.refviews import (
    OutOfView,
    RefView,
    array_position,
    holds,
    is_reshape,
    num_elements,
    open_mesh,
)
from pallas_debug.chips import LANES, TILE
from pallas_debug.stepping import unwritten

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A slice of stride 0: a position repeated `count` times."""

    start: int
    count: int


Entry = slice | int | Array
Requested = Entry | Repeat
"""Entry of an indexer before it is composed with others."""


@dataclass(eq=False, slots=True)
class MemoryBuffer:
    """A piece of memory.

    Attributes:
      content: the elements; for a semaphore, its counts.
      name: name of the operand or scratch.
      kind: "prefetch", "input", "output", "scratch", "scoped", "array" (a whole array in HBM) or
        "window" (a block of an operand in VMEM or SMEM).
      device: number of the device and of the core to which it belongs.
      scope: key that distinguishes it within its device, and is equal on other devices.
      users: number of cores that have not yet left its scope.
      is_early: whether another core has referred to it before its own core entered its scope.
      filled: source and destination of the last copy to it, for buffers in SMEM.
    """

    number: int
    content: Array
    name: str
    kind: str
    type: ir.RefType
    device: int = 0
    core: int = 0
    scope: tuple[Any, ...] = ()
    is_freed: bool = False
    is_early: bool = False
    users: int = 1
    filled: tuple[MemoryRegion, MemoryRegion] | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference as a value: a buffer and a view of it.

    Attributes:
      view: resolved parts of the view, outermost first.
      output: output that shares an input's array; None if the buffer has the operand's name.
    """

    buffer: MemoryBuffer
    view: tuple[Any, ...] = ()
    output: str | None = None

    @property
    def name(self) -> str:
        """Name of the operand in the code."""
        return self.output or self.buffer.name


class OutOfBounds(Exception):
    """An index is outside the reference.

    Attributes:
      buffer: memory of the reference.
      index: entries of the indexer: positions, and slices with concrete bounds.
      shape: shape of the indexed reference.
      recast: how the reference is reshaped or bitcast beforehand, such as `.reshape(4, 2, 128)`.
      place: view in the step.
    """

    place: ir.RefPlace | None = None

    def __init__(
        self,
        buffer: MemoryBuffer,
        index: tuple[Entry, ...],
        shape: tuple[int, ...],
        recast: str = "",
    ) -> None:
        super().__init__(f"{buffer.name}{list(index)} is out of bounds for shape {shape}")
        self.buffer = buffer
        self.index = index
        self.shape = shape
        self.recast = recast


@dataclass(frozen=True, slots=True)
class Indexed:
    """Part of a resolved view: an indexer with concrete numbers."""

    entries: tuple[Requested, ...]


@dataclass(slots=True)
class MemoryRegion:
    """Elements of a buffer that a view selects.

    Attributes:
      index: numpy index into the buffer's content; None if a single index cannot express it.
      chain: parts of the view, if `index` is None.
      shape: shape of the value; if the view repeats elements, `index` selects each once.
      existing: positions in the value of the elements that `index` selects, for a copy that
        includes the padding of an array's tiles; None if all elements are in the buffer.
      is_masked: whether these are only the elements for which the mask of an access is true.
    """

    buffer: MemoryBuffer
    index: tuple[Entry, ...] | None
    chain: tuple[Any, ...] = ()
    shape: tuple[int, ...] = ()
    existing: tuple[slice, ...] | None = None
    _view: RefView | None = field(default=None)
    is_masked: bool = False

    def read(self) -> Array:
        """Return a copy of the elements."""
        if self.index is None:
            found = self.view.read()
            if self.existing is None:
                return found
        else:
            found = units.aligned_copy(self.buffer.content[self.index])
        if self.existing is not None:
            value = unwritten.memory(self.shape, found.dtype)
            value[self.existing] = found
            return value
        if found.shape != self.shape:
            return np.array(np.broadcast_to(found, self.shape))
        return found

    def sums(self, values: Array) -> Array:
        """Return the elements after adding values, some of them to the same element."""
        before = self.read()
        assert self.index is not None
        index: Any = self.index
        np.add.at(self.buffer.content, index, values)
        after = self.read()
        self.write(before)
        return after

    def write(self, value: Any) -> None:
        if self.index is None:
            if self.existing is not None:
                value = value.reshape(self.shape)[self.existing]
            self.view.write(np.ascontiguousarray(np.broadcast_to(value, self.view.shape)))
        elif self.existing is not None:
            self.buffer.content[self.index] = value[self.existing]
        else:
            self.buffer.content[self.index] = value

    @property
    def view(self) -> RefView:
        if self._view is None:
            self._view = RefView(self.buffer.content, [_for_view(part) for part in self.chain])
        return self._view

    def positions(self) -> Array | None:
        """Flat positions of the elements in the buffer; None if the view changes their type."""
        if not all(isinstance(part, Indexed) or is_reshape(part) for part in self.chain):
            return None
        content = self.buffer.content
        numbers = np.arange(content.size).reshape(content.shape)
        return np.asarray(RefView(numbers, [_for_view(part) for part in self.chain]).read())

    @property
    def nbytes(self) -> int:
        if self.index is None:
            shape = self.view.shape if self.existing is None else self.shape
            return int(math.prod(shape) * np.dtype(self.view.dtype).itemsize)
        return int(math.prod(self.shape) * self.buffer.content.itemsize)

    @property
    def is_whole(self) -> bool:
        return self.index is not None and self.shape == self.buffer.content.shape

    def ranges(self) -> list[tuple[Entry, ...]]:
        """Disjoint indices into the buffer that exactly cover the region."""
        return [self.index] if self.index is not None else list(self.view.ranges())


def _for_view(part: Any) -> Any:
    return part.entries if isinstance(part, Indexed) else part


def resolve(ref: Ref, view: ir.View, env: list[Any], *, copies: bool = False) -> MemoryRegion:
    """Return the elements that a step accesses.

    Args:
      copies: whether the step is a DMA, which includes the padding of an array's tiles.

    Raises:
      OutOfBounds: an index is outside the reference.
    """
    buffer = ref.buffer
    if not view and not ref.view:
        shape = buffer.content.shape
        return MemoryRegion(buffer, tuple(slice(0, n, 1) for n in shape), (), shape)
    parts = (*ref.view, *concrete(view, env))
    if all(isinstance(part, Indexed) for part in parts):
        return _indexed(buffer, parts, pads=copies and buffer.type.space == "hbm")
    if any(isinstance(e, Repeat) for part in parts for e in getattr(part, "entries", ())):
        raise NotImplementedError("a slice of stride 0 of a reshaped or bitcast reference")
    return _recast(buffer, parts, pads=copies and buffer.type.space == "hbm")


def locate(place: ir.RefPlace, env: list[Any], *, copies: bool = False) -> MemoryRegion:
    """Return the elements that a step accesses; a constant index is resolved only once.

    Raises:
      OutOfBounds: an index is outside the reference.
    """
    ref = env[place.ref.number]
    if ref.view or not place.is_constant:
        return resolve(ref, place.view, env, copies=copies)
    buffer = ref.buffer
    shape = buffer.content.shape
    known = place.located.get(shape)
    if known is None:
        region = resolve(ref, place.view, env, copies=copies)
        if region.index is not None and region.existing is None:
            place.located[shape] = region.index, region.chain, region.shape
        return region
    return MemoryRegion(buffer, *known)


def access(registers: list[Any], place: ir.RefPlace, *, copies: bool = False) -> MemoryRegion:
    """Return the elements that a step accesses; adds the place to an `OutOfBounds` error."""
    try:
        return locate(place, registers, copies=copies)
    except OutOfBounds as error:
        error.place = place
        raise


def size(place: ir.RefPlace, env: list[Any]) -> int:
    """Size of a view in bytes, even if it extends beyond its reference.

    Kernels wait for several copies at once with a slice of as many rows as these have in total.
    """
    try:
        return locate(place, env, copies=True).nbytes
    except OutOfBounds:
        ref = env[place.ref.number]
        last = [*ref.view, *concrete(place.view, env)][-1]
        if not isinstance(last, Indexed) or any(map(_is_array, last.entries)):
            raise
        counts = [e.count if isinstance(e, Repeat) else num_elements(e)
                  for e in last.entries if isinstance(e, Repeat | slice)]  # fmt: skip
        return math.prod(counts) * int(ref.buffer.content.itemsize)


def concrete(view: ir.View, env: list[Any]) -> list[Any]:
    """Return the parts of a view with concrete numbers."""
    return [
        Indexed(tuple(_entry(entry, env) for entry in part.entries))
        if isinstance(part, ir.Index)
        else part.transform
        for part in view
    ]


def _entry(entry: Any, env: list[Any]) -> Requested:
    if isinstance(entry, int):
        return entry
    if type(entry) is ir.Slice:
        start, size = _number(entry.start, env), _number(entry.size, env)
        if entry.stride == 0:
            return Repeat(start, size)
        return slice(start, start + size * entry.stride, entry.stride)
    if type(entry) is ir.RowChoice:
        positions = _positions(env[entry.positions.number])
        found: Array = positions[positions != entry.ignored]
        return found
    value: Any = env[entry.number]
    if type(value) is Ref or np.ndim(value):
        return _positions(value)
    return int(value)


def _positions(value: Any) -> Array:
    """Return an array of positions, read from memory if a reference names them."""
    return resolve(value, (), []).read() if type(value) is Ref else np.asarray(value)


def chosen(view: ir.View, env: list[Any]) -> Array | None:
    """Rows of the other side of a copy that take part; None for all."""
    for part in view:
        entry = part.entries[0] if isinstance(part, ir.Index) and part.entries else None
        if isinstance(entry, ir.RowChoice):
            return np.flatnonzero(_positions(env[entry.positions.number]) != entry.ignored)
    return None


def _number(number: ir.Number, env: list[Any]) -> int:
    return int(env[number.number]) if isinstance(number, ir.Reg) else number


def _indexed(buffer: MemoryBuffer, parts: tuple[Indexed, ...], pads: bool = False) -> MemoryRegion:
    """Compose indexers into a single index of the buffer."""
    shape = buffer.content.shape
    region = _simply_indexed(buffer, parts)
    if region is not None:
        return region
    if any(_is_array(e) for part in parts[:-1] for e in part.entries):
        raise NotImplementedError("an array as an index of an indexed reference")
    index: list[Entry] = [slice(0, n, 1) for n in shape]
    dims = list(range(len(shape)))
    repeats: dict[int, int] = {}
    beyond: dict[int, int] = {}
    for part in parts:
        sizes = [_length(index[d]) for d in dims]
        entries = part.entries
        if repeats:
            raise NotImplementedError("an index of a slice of stride 0")
        if not holds(sizes, _once(entries)):
            if not pads or part is not parts[-1]:
                raise OutOfBounds(buffer, _once(entries), tuple(sizes))
            beyond = _in_padding(shape, index, dims, entries)
            entries = tuple(
                slice(e.start, e.stop - beyond[d], e.step) if isinstance(e, slice) else e
                for d, e in zip(dims, entries, strict=True)
            )
            if not holds(sizes, _once(entries)):
                raise OutOfBounds(buffer, _once(part.entries), tuple(sizes))
        kept = []
        for dim, entry in zip(dims, entries, strict=True):
            before = index[dim]
            assert isinstance(before, slice)
            step = before.step or 1
            if isinstance(entry, slice):
                start = before.start + entry.start * step
                stride = (entry.step if entry.step is not None else 1) * step
                count = _length(entry)
                index[dim] = slice(start, start + count * stride, stride)
                kept.append(dim)
            elif isinstance(entry, Repeat):
                start = before.start + entry.start * step
                index[dim] = slice(start, start + min(entry.count, 1), 1)
                repeats[dim] = entry.count
                kept.append(dim)
            else:
                index[dim] = before.start + entry * step
        dims = kept
    if any(_is_array(entry) for entry in index):
        if repeats:
            raise NotImplementedError("a slice of stride 0 beside an array as an index")
        final = tuple(index)
        position = array_position(_once(parts[-1].entries))
        if position != array_position(final):
            # `ref.at[0][:, array]`: numpy puts the array's dimensions first, because a slice
            # separates the array from the position that an outer indexer selected.
            final = open_mesh(final, position)
        selected = np.broadcast_to(np.int8(0), shape)[final].shape
        return MemoryRegion(buffer, final, parts, selected)
    found = tuple(_length(index[d]) for d in dims)
    if repeats:
        found = tuple(repeats.get(d, n) for d, n in zip(dims, found, strict=True))
    if any(beyond.values()):
        existing = tuple(slice(0, n) for n in found)
        found = tuple(n + beyond[d] for d, n in zip(dims, found, strict=True))
        return MemoryRegion(buffer, tuple(index), parts, found, existing)
    return MemoryRegion(buffer, tuple(index), parts, found)


def _recast(buffer: MemoryBuffer, parts: tuple[Any, ...], pads: bool) -> MemoryRegion:
    """Return the region of a view that is reshaped, bitcast or transposed."""
    try:
        view = RefView(buffer.content, [_for_view(part) for part in parts])
    except OutOfView as error:
        region = _recast_with_padding(buffer, parts) if pads else None
        if region is None:
            raise OutOfBounds(buffer, error.range, error.shape, error.chain) from error
        return region
    return MemoryRegion(buffer, None, parts, view.shape, _view=view)


def _recast_with_padding(buffer: MemoryBuffer, parts: tuple[Any, ...]) -> MemoryRegion | None:
    """Return the region of a reshaped array, with the padding of the last column's tiles."""
    *before, last = parts
    size = buffer.content.shape[-1]
    if not isinstance(last, Indexed) or not all(_keeps_columns(part, size) for part in before):
        return None
    shape = RefView(buffer.content, [_for_view(part) for part in before]).shape
    *rows, columns = last.entries
    padded = -(-size // LANES) * LANES
    if shape[-1] != size or not isinstance(columns, slice) or columns.step != 1:
        return None
    if columns.start < 0 or not size < columns.stop <= padded:
        return None
    within = slice(columns.start, max(size, columns.start), 1)
    if not holds(shape, _once((*rows, within))):
        return None
    view = RefView(buffer.content, [*map(_for_view, before), (*rows, within)])
    selected = (*view.shape[:-1], num_elements(columns))
    existing = tuple(slice(0, n) for n in view.shape)
    chain = (*before, Indexed((*rows, within)))
    return MemoryRegion(buffer, None, chain, selected, existing, view)


def _keeps_columns(part: Any, size: int) -> bool:
    if isinstance(part, Indexed):
        last = part.entries[-1]
        return isinstance(last, slice) and (last.start, num_elements(last)) == (0, size)
    return is_reshape(part)


def _simply_indexed(buffer: MemoryBuffer, parts: tuple[Indexed, ...]) -> MemoryRegion | None:
    """Return the region if all indexers are positions and in-bounds slices, otherwise None."""
    found: list[int] = list(buffer.content.shape)
    index: list[Any] = [slice(0, size, 1) for size in found]
    for number, part in enumerate(parts):
        sizes, found = found, []
        for entry, size in zip(part.entries, sizes, strict=True):
            if type(entry) is slice:
                if entry.step != 1 or not 0 <= entry.start <= entry.stop <= size:
                    return None
                found.append(entry.stop - entry.start)
            elif type(entry) is not int or not 0 <= entry < size:
                return None
        if not number:
            index = list(part.entries)
            continue
        entries = iter(part.entries)
        index = [_within(at, next(entries)) if type(at) is slice else at for at in index]
    return MemoryRegion(buffer, tuple(index), parts, tuple(found))


def _within(outer: slice, entry: Any) -> slice | int:
    """Compose an index with the contiguous slice that it indexes."""
    if type(entry) is slice:
        return slice(outer.start + entry.start, outer.start + entry.stop, 1)
    at: int = outer.start + entry
    return at


def _once(entries: tuple[Requested, ...]) -> tuple[Entry, ...]:
    return tuple(
        slice(e.start, e.start + min(e.count, 1), 1) if isinstance(e, Repeat) else e
        for e in entries
    )


def _in_padding(
    shape: tuple[int, ...], index: list[Entry], dims: list[int], entries: tuple[Requested, ...]
) -> dict[int, int]:
    """Map dimensions to the extent of slices into the padding of an array's last tiles.

    A TPU stores arrays in whole tiles, so that 255 columns occupy 256. A copy of whole tiles
    includes the padding, and kernels rely on it.
    """
    beyond = dict.fromkeys(dims, 0)
    for dim, entry in zip(dims, entries, strict=True):
        from_the_end = len(shape) - dim
        is_whole = index[dim] == slice(0, shape[dim], 1)
        if from_the_end <= len(TILE) and is_whole and isinstance(entry, slice) and entry.step == 1:
            tile = TILE[-from_the_end]
            if shape[dim] < entry.stop <= -(-shape[dim] // tile) * tile:
                beyond[dim] = entry.stop - max(shape[dim], entry.start)
    return beyond


def _is_array(entry: Any) -> bool:
    return isinstance(entry, np.ndarray)


def _length(entry: Entry) -> int:
    assert isinstance(entry, slice)
    return num_elements(entry)
