"""Elements that an access of a GPU's memory selects.

A GPU computes the address of each element, and accesses those for which the mask is true. So a
slice may reach past the end of its reference where the mask is false, and a block may lie outside
its array if nothing in it is accessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import (
    Array,
    Entry,
    Indexed,
    MemoryRegion,
    OutOfBounds,
    Ref,
    access,
    concrete,
)

Part = tuple[slice, ...] | Array
"""Part of a value: a slice along each dimension, or a mask."""


@dataclass(frozen=True)
class Selection:
    """Elements that an access selects.

    Attributes:
      shape: shape of the access.
      region: the elements that it accesses; None if the mask is false everywhere.
      part: their positions in the value; None for all.
    """

    shape: tuple[int, ...]
    region: MemoryRegion | None
    part: Part | None = None

    def of(self, value: Any) -> Array:
        """Return the elements of a value that are accessed."""
        whole = np.broadcast_to(np.asarray(value), self.shape)
        return np.array(whole if self.part is None else whole[self.part])

    def put(self, whole: Array, value: Array) -> Array:
        """Replace the accessed elements of a value."""
        if self.part is None:
            return value
        whole[self.part] = value
        return whole


def select(
    ref: Ref, place: ir.RefPlace, registers: list[Any], mask: Any, clips: Sequence[bool]
) -> Selection:
    """Return the elements that an access selects.

    Args:
      clips: dimensions of the array along which elements past its end are not accessed.

    Raises:
      OutOfBounds: an element that is accessed is outside the reference or its array.
    """
    if mask is None or np.all(mask):
        try:
            region = access(registers, place)
        except OutOfBounds:
            pass
        else:
            return Selection(region.shape, region)
    return _masked(ref, place, registers, True if mask is None else mask, clips)


@dataclass(slots=True)
class _Axis:
    """A dimension of an array as its reference sees it.

    Attributes:
      size: size of the reference's dimension; None once a position is selected.
      positions: positions in the reference that the access selects.
    """

    start: int
    step: int
    size: int | None
    positions: Any = None

    @property
    def elements(self) -> Any:
        return self.start if self.size is None else self.start + self.step * self.positions


def _masked(
    ref: Ref, place: ir.RefPlace, registers: list[Any], mask: Any, clips: Sequence[bool]
) -> Selection:
    buffer = ref.buffer
    parts = [*ref.view, *concrete(place.view, registers)]
    if not all(isinstance(part, Indexed) for part in parts):
        raise NotImplementedError("a reshaped or bitcast reference that is accessed under a mask")
    axes = [_Axis(0, 1, n) for n in buffer.content.shape]
    last: Sequence[Any] = [slice(0, n, 1) for n in buffer.content.shape]
    if parts and (len(parts) > 1 or not ref.view):
        *outer, inner = parts
        last = inner.entries
    else:
        outer = parts
        for axis, entry in zip(axes, parts[0].entries if parts else (), strict=False):
            axis.size = None if isinstance(entry, int) else len(range(entry.start, entry.stop))
        last = [slice(0, axis.size, 1) for axis in axes if axis.size is not None]
        axes = [_Axis(0, 1, n) for n in buffer.content.shape]
    for part in outer:
        _narrow(axes, part.entries)
    free = [axis for axis in axes if axis.size is not None]
    shape = _place(free, last)
    active = np.array(np.broadcast_to(np.asarray(mask, bool), shape))
    for axis, n, is_clipped in zip(axes, buffer.content.shape, clips, strict=True):
        if is_clipped:
            active &= np.broadcast_to(np.asarray(axis.elements) < n, shape)
    if not active.any():
        return Selection(shape, None, active)
    _require(ref, place, free, [axis.size for axis in free], "positions", active, last)
    _require(ref, place, axes, buffer.content.shape, "elements", active, [])
    return _selection(buffer, axes, shape, active, last)


def _narrow(axes: Sequence[_Axis], entries: Sequence[Any]) -> None:
    """Apply an indexer of positions and slices."""
    free = [axis for axis in axes if axis.size is not None]
    for axis, entry in zip(free, entries, strict=True):
        if isinstance(entry, slice):
            axis.start += axis.step * entry.start
            axis.size = len(range(entry.start, entry.stop, entry.step or 1))
            axis.step *= entry.step or 1
        elif isinstance(entry, int):
            axis.start += axis.step * entry
            axis.size = None
        else:
            raise NotImplementedError("an array as an index of an indexed reference")


def _place(free: Sequence[_Axis], entries: Sequence[Any]) -> tuple[int, ...]:
    """Set the positions that the last indexer selects; return the shape of the access."""
    arrays = [entry for entry in entries if isinstance(entry, np.ndarray)]
    common = np.broadcast_shapes(*(array.shape for array in arrays)) if arrays else ()
    slices = [entry for entry in entries if isinstance(entry, slice)]
    if arrays and slices and isinstance(entries[0], slice):
        raise NotImplementedError("an array as an index after a slice, under a mask")
    sizes = [len(range(e.start, e.stop, e.step or 1)) for e in slices]
    rank, number = len(common) + len(slices), 0
    for axis, entry in zip(free, entries, strict=True):
        if isinstance(entry, slice):
            along = [1] * rank
            along[len(common) + number] = sizes[number]
            number += 1
            positions = np.arange(entry.start, entry.stop, entry.step or 1)
            axis.positions = positions.reshape(along)
        elif isinstance(entry, np.ndarray):
            along = [*np.broadcast_to(entry, common).shape, *[1] * len(slices)]
            axis.positions = np.broadcast_to(entry, common).astype(np.int64).reshape(along)
        else:
            axis.positions = int(entry)
    return (*common, *sizes)


def _require(
    ref: Ref, place: ir.RefPlace, axes: Sequence[_Axis], sizes: Sequence[int | None],
    name: str, active: Array, entries: Sequence[Any],
) -> None:  # fmt: skip
    """Require that the accessed elements exist.

    Args:
      name: attribute of an axis that has their positions.
    """
    found: list[Entry] = []
    is_outside = False
    for axis, size in zip(axes, sizes, strict=True):
        positions = np.broadcast_to(getattr(axis, name), active.shape)[active]
        low, high = int(positions.min()), int(positions.max())
        is_outside |= low < 0 or high >= (size or 0)
        number = len(found)
        is_array = number < len(entries) and isinstance(entries[number], np.ndarray)
        found.append(positions if is_array else low if low == high else slice(low, high + 1, 1))
    if is_outside:
        error = OutOfBounds(ref.buffer, tuple(found), tuple(int(n or 0) for n in sizes))
        error.place = place
        raise error


def _selection(
    buffer: Any, axes: Sequence[_Axis], shape: tuple[int, ...], active: Array,
    entries: Sequence[Any],
) -> Selection:  # fmt: skip
    part = None if any(isinstance(e, np.ndarray) for e in entries) else _box(active)
    index: tuple[Entry, ...]
    if part is None:
        index = tuple(np.broadcast_to(axis.elements, shape)[active] for axis in axes)
        region = MemoryRegion(
            buffer, index, (Indexed(index),), (int(active.sum()),), is_masked=True
        )
        return Selection(shape, region, active)
    dims = iter(part)
    index = tuple(
        _range(np.ravel(axis.elements)[next(dims)])
        if isinstance(axis.positions, np.ndarray)
        else int(axis.elements)
        for axis in axes
    )
    sizes = tuple(bounds.stop - bounds.start for bounds in part)
    region = MemoryRegion(buffer, index, (Indexed(index),), sizes, is_masked=True)
    return Selection(shape, region, part)


def _box(active: Array) -> tuple[slice, ...] | None:
    """Return the slices that select exactly the true elements; None if there are none."""
    bounds = []
    for dim in range(active.ndim):
        hits = np.flatnonzero(active.any(axis=tuple(d for d in range(active.ndim) if d != dim)))
        bounds.append(slice(int(hits[0]), int(hits[-1]) + 1))
    found = tuple(bounds)
    return found if active[found].all() else None


def _range(elements: Array) -> slice:
    step = int(elements[1] - elements[0]) if elements.size > 1 else 1
    return slice(int(elements[0]), int(elements[-1]) + 1, step)
