"""Conversion of facts from TPU interpret mode to `model.Finding`s.

Knows buffers, ranges and places in a program; `tpu_interpret.py` does everything specific to jax.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds, order, semaphores, unsupported
from pallas_debug.model import Finding, Operand, SourceLine, Witness

Range = tuple[slice | int, ...]
Point = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """An accessed buffer: an operand of the kernel, or an allocation of `run_scoped`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str
    kind: str = "scratch"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} in {self.space.upper()}"

    def slice(self, range_: Range) -> str:
        """Format a slice of the buffer as in Python: `x_ref[12:20, 0:128]`."""
        return f"{self.name}[{', '.join(map(_index, self.whole(range_))) or '...'}]"

    def whole(self, range_: Range) -> Range:
        """Extend the range to an entry for every axis."""
        return (*range_, *(slice(0, size, 1) for size in self.shape[len(range_) :]))

    def holds(self, range_: Range) -> bool:
        return self.left(range_) is None

    def left(self, range_: Range) -> tuple[int, int, int, int] | None:
        """First axis on which the range is out of bounds, with start, stop and the axis size."""
        for axis, (start, stop, size) in enumerate(self._extents(range_)):
            if start < 0 or stop > size:
                return axis, start, stop, size
        return None

    def _extents(self, range_: Range) -> Sequence[tuple[int, int, int]]:
        pairs = zip(self.whole(range_), self.shape, strict=False)
        return [(*_bounds(index), size) for index, size in pairs]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Location of an event in a program.

    Attributes:
      thread: device and core.
      copy: source and destination, if a copy rather than the core makes the access.
      semaphore: semaphore that the copy signals when it is done.
    """

    kernel: str
    source: SourceLine | None
    grid_point: Point | None = None
    loop: Point = ()
    thread: Point = (0, 0)
    copy: tuple[str, str] | None = None
    semaphore: str | None = None

    def sighting(self, **facts: Any) -> Sighting:
        """Create a sighting at this place, with `facts` for its witness."""
        device, core = self.thread
        values = {"device": str(device), "core": str(core), **facts.pop("values", {})}
        given = {"source": self.source, "grid_point": self.grid_point, "loop": self.loop}
        witness = Witness(**{**given, **facts}, values=values)
        return Sighting(kernel=self.kernel, engine="tpu interpret", witness=witness)


@dataclass(frozen=True, kw_only=True)
class Touch:
    """A read or a write of a slice."""

    place: Place
    buffer: Buffer
    range: Range
    writes: bool

    @property
    def access(self) -> order.Access:
        return order.Access(
            writes=self.writes,
            grid_point=self.place.grid_point,
            loop=self.place.loop,
            device=self.place.thread[0],
            copy=self.place.copy,
            semaphore=self.place.semaphore,
        )

    def sighting(self, **facts: Any) -> Sighting:
        buffer = self.buffer
        index = buffer.slice(self.range)
        return self.place.sighting(operand=buffer.name, index=index, shape=str(buffer), **facts)


def no_such_device(place: Place, operand: str, device: int, count: int) -> Finding:
    """A copy or signal to a device that the mesh does not have."""
    seen = place.sighting(operand=operand)
    return bounds.no_such_device(seen, value=device, count=count, copy=place.copy)


def out_of_bounds(touch: Touch) -> Finding:
    """A load, store or copy out of bounds."""
    buffer = touch.buffer
    axis, start, stop, bound = buffer.left(touch.range) or (0, 0, 0, 0)
    entry = buffer.whole(touch.range)[axis]
    stride = (entry.step or 1) if isinstance(entry, slice) else 1
    return bounds.out_of_bounds(
        touch.sighting(),
        writes=touch.writes,
        dim=axis,
        start=start,
        size=-(-(stop - start) // stride) if isinstance(entry, slice) else None,
        bound=bound,
        stride=stride,
        is_scratch=buffer.kind == "scratch",
        copy=touch.place.copy,
    )


def block_out_of_bounds(
    touch: Touch, block: Point, block_shape: tuple[int | None, ...], *, from_tables: frozenset[int]
) -> Finding:
    """An index map that returns a block outside of the array."""
    shape = touch.buffer.shape
    counts = [-(-size // (of or 1)) for size, of in zip(shape, block_shape, strict=False)]
    is_offset = all(
        0 <= at < size and (at < count or (of is not None and of > 1 and at % of == 0))
        for at, of, count, size in zip(block, block_shape, counts, shape, strict=False)
    )
    pairs = zip(block, counts, strict=False)
    outside = [i for i, (at, count) in enumerate(pairs) if not 0 <= at < count]
    dim = outside[0] if outside else 0
    return bounds.block_out_of_bounds(
        touch.sighting(),
        dim=dim,
        value=block[dim],
        first=0,
        last=counts[dim] - 1,
        array=f"{touch.buffer.dtype}{list(shape)}",
        block_size=block_shape[dim] or 1,
        is_offset=is_offset,
        from_table=dim in from_tables,
    )


def output_revisited(touch: Touch, first: Point, last: Point) -> Finding:
    """An output block that is revisited after another one."""
    seen = touch.sighting()
    again = touch.place.grid_point or ()
    what = touch.buffer.slice(touch.range)
    return order.output_revisited(seen, what=what, first=first, last=last, again=again)


def data_race(touch: Touch, earlier: Touch, *, was_filled: bool) -> Finding:
    """Two unordered accesses.

    Args:
      touch: the later access.
      earlier: the earlier access.
      was_filled: whether a write is ordered before the read. If so, the read was meant to see that
        write, and the racing copy started too early.
    """
    touch, other = _sides(touch, earlier, was_filled)
    device, core = other.place.thread
    values = {"other device": str(device), "other core": str(core)}
    return order.data_race(
        touch.sighting(other=other.place.source, values=values),
        what=f"{touch.buffer.slice(touch.range)}, {touch.buffer},",
        here=touch.access,
        there=other.access,
        was_filled=was_filled,
    )


def _sides(touch: Touch, earlier: Touch, was_filled: bool) -> tuple[Touch, Touch]:
    """Order the two sides of a race, the likely culprit first."""
    if (touch.place.copy is None) == (earlier.place.copy is None):
        return touch, earlier
    copy, core = (touch, earlier) if touch.place.copy else (earlier, touch)
    return (copy, core) if was_filled and not core.writes else (core, copy)


def semaphore_not_zero(
    place: Place, semaphore: str, value: int, *, signal: Place | None, wait: Place | None
) -> Finding:
    """A semaphore with a nonzero count at the end of the kernel.

    Args:
      place: end of the kernel.
      signal: place of the last signal.
      wait: place of the last wait, if any, which took too little.
    """
    at = wait or signal or place
    other = signal.source if wait is not None and signal is not None else None
    seen = at.sighting(operand=semaphore, other=other, values={"count": str(value)})
    return semaphores.semaphore_left_over(
        seen, semaphore=semaphore, count=value, is_awaited=wait is not None
    )


def copy_not_awaited(place: Place, semaphore: str, left: int | None) -> Finding:
    """A copy that is started but never awaited; `left` is in bytes, if known."""
    source, destination = place.copy or ("?", "?")
    values = {"semaphore": semaphore, "source": source, "destination": destination}
    return semaphores.copy_not_awaited(
        place.sighting(operand=destination, values=values),
        semaphore=semaphore,
        source=source,
        destination=destination,
        left=left,
    )


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A waiting thread, and the state of its semaphore.

    Attributes:
      count: current count of the semaphore.
      value: count that the wait needs.
      signal: place of the last signal, if any.
      copies: number of copies ever started on the semaphore.
      of_copy: whether the wait is for a copy.
    """

    place: Place
    semaphore: str
    count: int
    value: int
    signal: Place | None
    copies: int
    of_copy: bool


def deadlock(wait: Wait, others: int) -> Finding:
    """A wait that never ends; `others` is the number of other threads that are stuck."""
    seen = wait.place.sighting(
        operand=wait.semaphore,
        other=None if wait.signal is None else wait.signal.source,
        values={"count": str(wait.count), "awaited": str(wait.value)},
    )
    return semaphores.deadlock(
        seen,
        semaphore=wait.semaphore,
        count=wait.count,
        needed=wait.value,
        of_copy=wait.of_copy,
        was_raised=bool(wait.copies) if wait.of_copy else wait.signal is not None,
        device=wait.place.thread[0],
        others=others,
    )


def direct_access(place: Place, operand: Operand | None) -> Finding:
    """A load or store of a reference that only supports copies."""
    shape = f"{operand.dtype}{list(operand.shape)} in HBM" if operand else None
    seen = place.sighting(operand=operand.name if operand else None, shape=shape)
    return unsupported.direct_hbm_access(seen)


def not_interpreted(place: Place, message: str) -> Finding:
    """An error in jax's interpreter that is unrelated to the kernel."""
    return unsupported.interpret_error(place.sighting(), error=message)


def _bounds(index: slice | int) -> tuple[int, int]:
    if isinstance(index, slice):
        return int(index.start or 0), int(index.stop)
    return int(index), int(index) + 1


def _index(index: slice | int) -> str:
    if not isinstance(index, slice):
        return str(index)
    start, stop = _bounds(index)
    return f"{start}:{stop}" if index.step in (None, 1) else f"{start}:{stop}:{index.step}"


def key(range_: Range) -> tuple[tuple[int | None, ...], ...]:
    """Hashable form of a range: slices are unhashable before Python 3.12."""
    return tuple(
        (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
        for index in range_
    )


def overlap(one: Range, other: Range, shape: tuple[int, ...]) -> bool:
    """Return whether two ranges of a buffer overlap; steps other than 1 are ignored."""
    whole = [slice(0, size) for size in shape]
    pairs = itertools.zip_longest(one, other)
    for axis, (a, b) in enumerate(pairs):
        (start, stop), (first, last) = (
            _bounds(whole[axis] if index is None else index) for index in (a, b)
        )
        if max(start, first) >= min(stop, last):
            return False
    return True
