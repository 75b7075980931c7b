"""Detection, in every run, of accesses to memory that a copy in flight reads or writes.

Unlike race detection, this neither slows a kernel down nor fails its test. The interpreter performs
a copy when the kernel waits for it, but a TPU may do so at any time until then: if the kernel
accesses the memory before that wait, the order decides the result. An access is compared only with
copies in flight, element by element if it is strided, masked, or through a reshaped or bitcast
reference. Blocks that a pipeline moves are not compared: a TPU moves them at other times.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

from pallas_debug.bridge.interpret import tpu_findings as words
from pallas_debug.bridge.interpret.extend import views
from pallas_debug.bridge.interpret.extend.memory import concrete, without_adds
from pallas_debug.bridge.interpret.tpu_findings import Buffer, Place, Point, Range, Touch
from pallas_debug.bridge.interpret.tpu_run import Copy, CopyObserver, KernelRun, range_of, reporters

MAX_SUSPECTED = 8
"""Maximum number of races recorded per run of a kernel; later accesses are not compared."""

MAX_ELEMENTS = 1 << 22
"""Maximum elements of an access that is compared element by element; larger ones are not
compared."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TouchedRegion(Touch):
    """A read or a write of elements of a buffer: all of `range`, or those that the rest selects.

    Attributes:
      view: of memory that stands for the buffer; None if the elements are those of `range`.
      mask: of the elements in the view, those that are accessed; None for all.
    """

    view: views.RefView | None = None
    mask: np.ndarray[Any, Any] | None = None

    @functools.cached_property
    def elements(self) -> np.ndarray[Any, Any]:
        """Sorted positions in the buffer."""
        assert self.view is not None
        return self.view.elements(self.mask)


@dataclass(frozen=True, eq=False)
class Flight:
    """One side of a copy: its reads or its writes."""

    touch: TouchedRegion
    copy: Copy

    @property
    def is_over(self) -> bool:
        """True if the kernel waited for the copy, or the interpreter has performed it."""
        if self.copy.bytes_left <= 0 or self.copy.is_polled or self.copy.dma is None:
            return True
        state = self.copy.dma.state
        if self.touch.writes:
            return state is interpreter.DmaState.COMPLETED
        return state is not interpreter.DmaState.STARTED


def accessed(run: KernelRun, place: Place, arguments: Mapping[str, Any], *, writes: bool) -> None:
    """Compare a load or store of a core with the copies in flight."""
    where = (*place.thread, int(arguments["buffer_id"]))
    if where not in run.flights:
        return
    mask = arguments.get("mask")
    touch = _region(run, place, where, arguments["transforms"], mask, writes=writes)
    if touch is not None:
        _compare(run, where, touch)


Side = tuple[Point, TouchedRegion]


def sides(
    run: KernelRun, place: Place, arguments: Mapping[str, Any], source: Point, destination: Point
) -> Sequence[Side | None]:
    """Return the reads and writes of a copy, after comparing them with the copies in flight.

    Args:
      source: device, core and id of the source buffer.
      destination: device, core and id of the destination buffer.
    """
    if not _is_wanted(run):
        return (None, None)
    with run.lock:
        is_first, run.has_copied = not run.has_copied, True
    if is_first and (copies := _observer()) is not None:
        copies.copied(run.kernel.name, "tpu")
    found: list[Side | None] = []
    for where, part, writes in ((source, "src", False), (destination, "dst", True)):
        touch = _region(run, place, where, arguments[f"{part}_transforms"], writes=writes)
        found.append(None if touch is None else (where, touch))
        if touch is not None:
            _compare(run, where, touch)
    return found


def start(run: KernelRun, side: Side | None, copy: Copy) -> None:
    """Register one side of a copy that is in flight from now on."""
    if side is not None:
        where, touch = side
        with run.lock:
            run.flights.setdefault(where, []).append(Flight(touch, copy))


def _is_wanted(run: KernelRun) -> bool:
    if run.memory.detect_races or len(run.suspected) >= MAX_SUSPECTED:
        return False
    return _observer() is not None


def _observer() -> CopyObserver | None:
    """Observer of the innermost of nested sessions."""
    innermost = reporters.innermost
    return None if innermost is None else innermost.copies


def _region(
    run: KernelRun, place: Place, where: Point, transforms: Any, mask: Any = None, *, writes: bool
) -> TouchedRegion | None:
    """Return the region that an access touches; None if it is unknown."""
    buffer = run.buffer(*where)
    if buffer is None:
        return None
    region = TouchedRegion(place=place, buffer=buffer, range=(), writes=writes)
    range_ = range_of(transforms)
    if range_ is not None and mask is None and _is_dense(range_):
        return replace(region, range=range_)
    try:
        view = _view(run, where, buffer, without_adds(concrete(transforms)))
    except (ValueError, NotImplementedError, MemoryError):  # an array of indices, or others
        return None
    return replace(region, view=view, mask=None if mask is None else np.asarray(mask))


def _is_dense(range_: Range) -> bool:
    return all(not isinstance(index, slice) or index.step in (None, 1) for index in range_)


def _view(run: KernelRun, where: Point, buffer: Buffer, chain: Sequence[Any]) -> views.RefView:
    with run.lock:
        layout = run.layouts.get(where)
        if layout is None:  # only addresses matter, so its pages are never touched
            layout = run.layouts[where] = np.empty(buffer.shape, buffer.dtype)
    return views.RefView(layout, chain, is_padded=True)


def _overlapping(
    run: KernelRun, where: Point, one: TouchedRegion, other: TouchedRegion
) -> Sequence[TouchedRegion]:
    """Both accesses if they touch the same elements, narrowed to a range of these if either is more
    than a range. Empty if they do not, or if that is unknown.
    """
    buffer = one.buffer
    if one.view is None and other.view is None:
        return (one, other) if words.overlap(one.range, other.range, buffer.shape) else ()
    one, other = (
        r if r.view else replace(r, view=_view(run, where, buffer, [buffer.whole(r.range)]))
        for r in (one, other)
    )
    assert one.view is not None
    assert other.view is not None
    shares = one.view.shares(other.view)
    if shares and (one.mask is not None or other.mask is not None):
        shares = None
    sizes = math.prod(one.view.shape), math.prod(other.view.shape)
    if shares is False or max(sizes) > MAX_ELEMENTS:
        return ()
    both = np.intersect1d(one.elements, other.elements, assume_unique=True)
    if not both.size:
        return ()
    shared = next(views.cover(both, buffer.shape)) if buffer.shape else ()
    return [replace(region, range=shared) for region in (one, other)]


def _compare(run: KernelRun, where: Point, touch: TouchedRegion) -> None:
    with run.lock:
        flights = [flight for flight in run.flights.get(where, ()) if not flight.is_over]
        if flights:
            run.flights[where] = flights
        else:
            run.flights.pop(where, None)
    for flight in flights:
        other = flight.touch
        if not (touch.writes or other.writes):
            continue
        pair = touch.buffer.name, frozenset({touch.place.source, other.place.source})
        if pair in run.suspected or not _is_wanted(run):
            continue
        if overlapping := _overlapping(run, where, touch, other):
            run.suspected.add(pair)
            found = words.data_race(*overlapping, was_filled=False)
            if (copies := _observer()) is not None:
                copies.suspected(found)
