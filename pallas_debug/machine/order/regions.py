"""Regions of a buffer: as boxes, with intersection, coverage and text; and their elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from pallas_debug.bridge.instrument.sites import slice_text
from pallas_debug.machine.memory import Entry, MemoryRegion

Box = tuple[range, ...]
"""Range along each dimension of a buffer."""

MAX_BOXES = 256
"""Maximum number of boxes of an access; the order of larger gathers is not checked."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole array."""
    return tuple(range(n) for n in shape)


def boxes(region: MemoryRegion) -> tuple[Box, ...]:
    """Return disjoint boxes that exactly cover a region; none if there would be too many."""
    shape = region.buffer.content.shape
    if region.is_whole:
        return (whole(shape),)
    found: list[Box] = []
    for index in region.ranges():
        choices = [_ranges(entry, n) for entry, n in zip(index, shape, strict=False)]
        if len(found) + math.prod(map(len, choices)) > MAX_BOXES:
            return ()
        rest = whole(shape[len(index) :])
        arrays = [entry for entry in index if isinstance(entry, np.ndarray)]
        if len(arrays) > 1 and any(array.size > 1 for array in arrays):
            return ()  # the elements are pairs, not a product
        found += [(*box, *rest) for box in itertools.product(*choices)]
    return tuple(found)


def _ranges(entry: Entry, size: int) -> list[range]:
    if isinstance(entry, slice):
        return [range(*entry.indices(size))]
    if not isinstance(entry, np.ndarray):
        return [range(int(entry), int(entry) + 1)]
    positions = [int(i) for i in np.unique(entry)]
    if not positions:
        return [range(0)]
    if len(positions) == positions[-1] - positions[0] + 1:
        return [range(positions[0], positions[-1] + 1)]
    return [range(i, i + 1) for i in positions]


def masked(region: MemoryRegion, mask: np.ndarray) -> tuple[Box, ...]:
    """Return the box where a mask is true; none if the elements are no product of ranges."""
    found = boxes(region)
    is_true = np.broadcast_to(mask, region.shape)
    if is_true.all():
        return found
    index = region.index or ()
    if not is_true.any() or len(found) != 1 or any(isinstance(e, np.ndarray) for e in index):
        return ()
    parts = list(found[0])
    dims = [dim for dim, entry in enumerate(index) if isinstance(entry, slice)]
    for axis, dim in enumerate(dims):
        hits = np.flatnonzero(
            np.moveaxis(is_true, axis, 0).reshape(len(parts[dim]), -1).any(axis=1)
        )
        parts[dim] = parts[dim][hits[0] : hits[-1] + 1]
    return (tuple(parts),) if is_true.sum() == math.prod(map(len, parts)) else ()


def selects(index: Sequence[Entry], element: Sequence[int]) -> bool:
    """Return whether an index into a buffer selects an element of it."""
    found = [
        n in range(entry.start, entry.stop, entry.step or 1)
        if isinstance(entry, slice)
        else np.equal(entry, n)
        for entry, n in zip(index, element, strict=True)
    ]
    return bool(np.logical_and.reduce(np.broadcast_arrays(*found)).any())


def meet(a: Box, b: Box) -> Box | None:
    """Intersect two boxes; None if they are disjoint."""
    found = []
    for one, other in zip(a, b, strict=True):
        if one.step == 1 and other.step == 1:
            both = range(max(one.start, other.start), min(one.stop, other.stop))
        else:
            both = _common(one, other)
        if not both:
            return None
        found.append(both)
    return tuple(found)


def _common(a: range, b: range) -> range:
    """Intersect two ranges with steps."""
    first, last = max(a.start, b.start), min(a.stop, b.stop)
    step = math.lcm(a.step, b.step)
    start = a.start + -(-max(first - a.start, 0) // a.step) * a.step
    for number in range(start, min(last, start + step), a.step):
        if number in b:
            return range(number, last, step)
    return range(0)


def first_meeting(a: Sequence[Box], b: Sequence[Box]) -> Box | None:
    """Return the intersection of the first two boxes that share elements."""
    for one in a:
        for other in b:
            found = meet(one, other)
            if found is not None:
                return found
    return None


def covers(a: Sequence[Box], b: Sequence[Box]) -> bool:
    """Return whether each box of `b` is within a box of `a`."""
    return all(any(_holds(outer, inner) for outer in a) for inner in b)


def _holds(outer: Box, inner: Box) -> bool:
    return all(
        big == small
        or (big.step == 1 and big.start <= small.start and (not small or small[-1] < big.stop))
        for big, small in zip(outer, inner, strict=True)
    )


def box_text(name: str, box: Box) -> str:
    """Unparse a box: `tiles_ref[0, 0:8, 0:128]`."""
    if not box:
        return name
    entries = [
        str(part.start) if len(part) == 1 else slice_text(part.start, len(part), part.step)
        for part in box
    ]
    return f"{name}[{', '.join(entries)}]"


def boxes_text(name: str, found: Sequence[Box], shape: Sequence[int]) -> str:
    """Unparse several boxes; the name alone if they cover the whole buffer."""
    if not found or (len(found) == 1 and found[0] == whole(shape)):
        return name
    return " and ".join(box_text(name, box) for box in found[:2]) + (" …" if found[2:] else "")
