"""Words for what TPU interpret mode sees: facts about an access go in, `model.Finding`s come out.

Knows buffers, ranges and places in a program, and nothing of jax: `tpu_interpret.py` takes the
facts from jax's interpreter and hands them over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pallas_debug.model import Finding, Operand, SourceLine

ENGINE = "tpu interpret"

Range = tuple[slice | int, ...]
Point = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """What is accessed: an operand of the kernel, or what `run_scoped` allocated."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str
    kind: str = "scratch"

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} in {self.space.upper()}"

    def slice(self, range_: Range) -> str:
        """The slice as one would write it: `x_ref[12:20, 0:128]`."""
        return f"{self.name}[{', '.join(map(_index, self.whole(range_))) or '...'}]"

    def whole(self, range_: Range) -> Range:
        """The range with an entry for every axis."""
        return (*range_, *(slice(0, size, 1) for size in self.shape[len(range_) :]))

    def holds(self, range_: Range) -> bool:
        return self._left(range_) is None

    def excess(self, range_: Range) -> str:
        """Where the range leaves the buffer: `reaches 4 rows past`, `starts 1 row before`."""
        left = self._left(range_)
        if left is None:
            return "does not fit in"
        axis, start, stop, size = left
        if start < 0:
            return f"starts {self._count(-start, axis)} before"
        if start > size and stop - start > 1:
            return f"starts {self._count(start - size, axis)} past the end of"
        if start == size and stop - start > 1:
            return "starts right past the end of"
        return f"reaches {self._count(stop - size, axis)} past"

    def bound(self, range_: Range) -> str:
        """How to stay inside: `bound the start by x_ref.shape[0] - 8`."""
        left = self._left(range_)
        if left is None:
            return "compare the slice with the shape"
        axis, start, stop, _ = left
        noun = "start" if isinstance(self.whole(range_)[axis], slice) else "index"
        if start < 0:
            return f"keep the {noun} at 0 or above"
        return f"bound the {noun} by {self.name}.shape[{axis}] - {max(1, stop - start)}"

    def num_elements(self, range_: Range) -> int:
        return math.prod(max(0, stop - start) for start, stop, _ in self._extents(range_))

    def _left(self, range_: Range) -> tuple[int, int, int, int] | None:
        """The first axis that the range leaves, with start, stop and the size there is."""
        for axis, (start, stop, size) in enumerate(self._extents(range_)):
            if start < 0 or stop > size:
                return axis, start, stop, size
        return None

    def _extents(self, range_: Range) -> Sequence[tuple[int, int, int]]:
        pairs = zip(self.whole(range_), self.shape, strict=False)
        return [(*_bounds(index), size) for index, size in pairs]

    def _count(self, number: int, axis: int) -> str:
        from_last = len(self.shape) - axis
        if len(self.shape) == 1:
            one, many = "element", "elements"
        elif from_last == 1:
            one, many = "column", "columns"
        elif from_last == 2:
            one, many = "row", "rows"
        else:
            one, many = f"entry of axis {axis}", f"entries of axis {axis}"
        return f"{number} {one if number == 1 else many}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a program something happened.

    Attributes:
      thread: device and core.
      copy: source and destination, where it is a copy that reads or writes and not the core.
    """

    kernel: str
    source: SourceLine | None
    grid_point: Point | None = None
    loop: Point = ()
    thread: Point = (0, 0)
    copy: tuple[str, str] | None = None

    @property
    def when(self) -> str:
        at = f" at grid point {self.grid_point}" if self.grid_point else ""
        return f"{at} on device {self.thread[0]}" if self.thread[0] else at


@dataclass(frozen=True, kw_only=True)
class Touch:
    """A read or a write of a slice."""

    place: Place
    buffer: Buffer
    range: Range
    writes: bool

    @property
    def what(self) -> str:
        verb = "written" if self.writes else "read"
        if self.place.copy is None:
            return f"{verb}{self.place.when}"
        source, destination = self.place.copy
        return f"{verb} by the copy of {source} to {destination}{self.place.when}"


def finding(
    place: Place, kind: str, message: str, values: Mapping[str, str] | None = None, **more: object
) -> Finding:
    """A finding at a place."""
    device, core = place.thread
    known = Finding(
        kind=kind,
        kernel=place.kernel,
        message=message,
        source=place.source,
        grid_point=place.grid_point,
        loop=place.loop,
        values={"device": str(device), "core": str(core), **(values or {})},
        engine=ENGINE,
    )
    return replace(known, **more)  # type: ignore[arg-type]


def out_of_bounds(touch: Touch) -> Finding:
    """A load, a store or a copy past the ends of what it indexes."""
    buffer, place = touch.buffer, touch.place
    index = buffer.slice(touch.range)
    of_copy = ""
    if place.copy is not None:
        source, destination = place.copy
        of_copy = f", in the copy of {source} to {destination}"
    excess = buffer.excess(touch.range)
    cause = None
    if excess.endswith("before"):
        cause = "an index below zero does not count from the end, as it would in NumPy"
    elif place.loop:
        cause = "the index follows a loop that goes further than the operand"
    larger = "pad the input" if buffer.kind == "input" else f"make {buffer.name} larger"
    return finding(
        place,
        "OutOfBoundsWrite" if touch.writes else "OutOfBoundsRead",
        f"{index} {excess} {buffer.name}, {buffer}{of_copy}",
        operand=buffer.name,
        index=index,
        shape=str(buffer),
        cause=cause,
        advice=f"{buffer.bound(touch.range)}, or {larger}",
    )


def block_out_of_bounds(
    touch: Touch, block: Point, block_shape: tuple[int | None, ...], *, from_table: bool
) -> Finding:
    """An index map that names a block which the array does not have."""
    buffer = touch.buffer
    index = buffer.slice(touch.range)
    counts = [-(-size // (of or 1)) for size, of in zip(buffer.shape, block_shape, strict=False)]
    has = " x ".join(map(str, counts))
    is_offset = all(
        0 <= at < size and (at < count or (of is not None and of > 1 and at % of == 0))
        for at, of, count, size in zip(block, block_shape, counts, buffer.shape, strict=False)
    )
    if is_offset:
        cause = "the index map seems to return an offset in elements: Pallas counts in blocks"
        advice = "return the number of the block: divide by the block's size"
    elif from_table:
        cause = "the index map takes the block from a scalar prefetch operand, unchecked"
        advice = "check the table before the call, or clamp the index in the index map"
    else:
        cause = f"there are {has} blocks, counted from 0"
        advice = "clamp the index in the index map, or make the grid smaller"
    return finding(
        touch.place,
        "BlockOutOfBounds",
        f"block {block} of {buffer.name} is {index}, which {buffer.excess(touch.range)} the array, "
        f"{buffer.dtype}{list(buffer.shape)}",
        operand=buffer.name,
        index=index,
        shape=str(buffer),
        cause=cause,
        advice=advice,
        values={"block": str(block)},
    )


def output_revisited(touch: Touch, first: Point, last: Point) -> Finding:
    """An output block that comes again after another one."""
    index = touch.buffer.slice(touch.range)
    visits = f"at grid point {first}" if first == last else f"at grid points {first} to {last}"
    return finding(
        touch.place,
        "OutputRevisited",
        f"{index} is the output block again, as it was {visits}, with another block in between",
        operand=touch.buffer.name,
        index=index,
        shape=str(touch.buffer),
        cause="an output block is written back when another one comes, and is never read back",
        advice="make the grid axes over which the block stays the same the last ones",
    )


def data_race(touch: Touch, earlier: Touch, *, was_filled: bool) -> Finding:
    """Two accesses that nothing orders.

    Args:
      touch: the one that was seen last.
      earlier: the one that was seen before.
      was_filled: whether a write came before the read, in order: then it is that which the read
        was to see, and the copy came too early.
    """
    touch, other = _sides(touch, earlier, was_filled)
    index = touch.buffer.slice(touch.range)
    cause, advice = _why_race(touch, other, was_filled)
    return finding(
        touch.place,
        "DataRace",
        f"{index}, {touch.buffer}, is {touch.what} here, and {other.what} "
        "on the other side; nothing orders the two",
        operand=touch.buffer.name,
        index=index,
        shape=str(touch.buffer),
        other=other.place.source,
        cause=cause,
        advice=advice,
        values=_race_values(other),
    )


def _sides(touch: Touch, earlier: Touch, was_filled: bool) -> tuple[Touch, Touch]:
    """First the side where the fault most likely is."""
    if (touch.place.copy is None) == (earlier.place.copy is None):
        return touch, earlier
    copy, core = (touch, earlier) if touch.place.copy else (earlier, touch)
    return (copy, core) if was_filled and not core.writes else (core, copy)


def _why_race(touch: Touch, other: Touch, was_filled: bool) -> tuple[str, str]:
    copies = (touch.place.copy is not None) + (other.place.copy is not None)
    if copies == 2:
        return "two copies are under way at once", "wait for one before the other starts"
    if copies == 0:
        if touch.place.thread[0] != other.place.thread[0]:
            return (
                "two devices touch the same memory",
                "let one signal a semaphore that the other waits for",
            )
        return (
            "the grid points of a parallel axis run on several cores at once",
            'give each grid point a block of its own, or make the axis "arbitrary" in '
            "dimension_semantics",
        )
    core = other if touch.place.copy else touch
    if core.writes:
        return (
            "the copy is still under way when its buffer is written",
            "wait for the copy before this line, or write to another buffer",
        )
    if was_filled:
        return (
            "the copy writes into a buffer that is still to be read",
            "start the copy after the read, or give it a second buffer",
        )
    return (
        "what a copy brings is there only after its wait",
        "wait for the copy before this line",
    )


def _race_values(other: Touch) -> dict[str, str]:
    device, core = other.place.thread
    values = {"other device": str(device), "other core": str(core)}
    if other.place.grid_point is not None:
        values["other grid point"] = str(other.place.grid_point)
    return values


def semaphore_not_zero(
    place: Place, semaphore: str, value: int, *, signal: Place | None, wait: Place | None
) -> Finding:
    """A semaphore that is left with a count.

    Args:
      place: the kernel's end.
      signal: of the last signal.
      wait: of the last wait; where there was one it is that which took too little.
    """
    at = wait or signal or place
    other = signal.source if wait is not None and signal is not None else None
    return finding(
        at,
        "SemaphoreNotZero",
        f"{semaphore} is {value} at the end of the kernel, and has to be 0",
        grid_point=at.grid_point,
        operand=semaphore,
        other=other,
        values={"count": str(value)},
        cause="it is signalled more than it is waited for" if wait else "nobody waits for it",
        advice=f"wait for {semaphore} as often as it is signalled: the next kernel inherits it",
    )


def copy_not_awaited(place: Place, semaphore: str) -> Finding:
    """A copy that is started and never waited for."""
    source, destination = place.copy or ("?", "?")
    return finding(
        place,
        "DmaNotAwaited",
        f"the copy of {source} to {destination} is never waited for on {semaphore}",
        operand=destination,
        values={"semaphore": semaphore, "source": source, "destination": destination},
        cause="the kernel may be over before the copy is",
        advice="call wait() on the copy before the kernel ends, or do not start it",
    )


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A thread that waits, and what is known of its semaphore.

    Attributes:
      count: what the semaphore holds.
      value: what the wait needs.
      signal: place of the last signal, if there was one.
      copies: copies that were ever started on it.
      of_copy: whether the wait is that of a copy.
    """

    place: Place
    semaphore: str
    count: int
    value: int
    signal: Place | None
    copies: int
    of_copy: bool


def deadlock(wait: Wait, others: int) -> Finding:
    """A wait that will never end; `others` is the number of threads that wait like this one."""
    unit = " bytes" if wait.of_copy else ""
    on = f" on device {wait.place.thread[0]}" if wait.place.thread[0] else ""
    message = f"{wait.semaphore}{on} is {wait.count}{unit}, and the wait needs {wait.value}{unit}"
    if others:
        message += f"; {others} more {'thread waits' if others == 1 else 'threads wait'} as well"
    if not wait.of_copy:
        cause = "nobody signals it" if wait.signal is None else "it is signalled too seldom"
        advice = "signal it once for every wait, on the device and core that waits"
    elif wait.copies:
        cause = "the copies on it were all waited for before: a start is good for one wait"
        advice = "wait once for each start, with the same slices and the same semaphore"
    else:
        cause = "no copy was started on it"
        advice = "start the copy before its wait, on the same semaphore"
    return finding(
        wait.place,
        "Deadlock",
        message,
        operand=wait.semaphore,
        other=None if wait.signal is None else wait.signal.source,
        values={"count": str(wait.count), "awaited": str(wait.value)},
        cause=cause,
        advice=advice,
    )


def direct_access(place: Place, operand: Operand | None) -> Finding:
    """A load or store of a reference that the kernel may only copy from or to."""
    name = operand.name if operand else "a reference"
    shape = f"{operand.dtype}{list(operand.shape)} in HBM" if operand else None
    return finding(
        place,
        "DirectHbmAccess",
        f"{name}, {shape or 'in HBM'}, is loaded or stored directly",
        operand=operand and operand.name,
        shape=shape,
        cause="a TPU core loads and stores VMEM and SMEM alone",
        advice="copy it to VMEM with pltpu.sync_copy, or give the operand a block there",
    )


def check_refused(place: Place) -> Finding:
    """A `checkify.check` in a kernel."""
    return finding(
        place,
        "CheckNotSupported",
        "jax has no way to run a checkify.check within a kernel",
        cause="checkify does not look into kernels since jax 0.10.1",
        advice="write pl.debug_check",
    )


def not_interpreted(place: Place, message: str) -> Finding:
    """What jax's interpreter refuses for a reason of its own."""
    return finding(place, "InterpretError", message)


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
    """The range as what can be a key: before Python 3.12 a slice cannot."""
    return tuple(
        (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
        for index in range_
    )


def overlap(one: Range, other: Range, shape: tuple[int, ...]) -> bool:
    """Whether two ranges of a buffer have an element in common; steps are taken for 1."""
    whole = [slice(0, size) for size in shape]
    pairs = itertools.zip_longest(one, other)
    for axis, (a, b) in enumerate(pairs):
        (start, stop), (first, last) = (
            _bounds(whole[axis] if index is None else index) for index in (a, b)
        )
        if max(start, first) >= min(stop, last):
            return False
    return True
