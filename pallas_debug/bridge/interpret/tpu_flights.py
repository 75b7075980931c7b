"""Accesses to memory that a copy in flight reads or writes, noticed in every run.

Race detection slows a kernel down and fails its test; this does neither. The interpreter performs a
copy when the kernel waits for it, a TPU at any time until then: if the kernel accesses the memory
before that wait, the order decides the result. An access is compared with copies in flight only. It
is not compared if it is strided, masked, through a transformed reference, or by a pipeline, as it
may touch none of the elements that are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

from pallas_debug.bridge.interpret import tpu_findings as words
from pallas_debug.bridge.interpret.tpu_findings import Buffer, Place, Point, Range, Touch
from pallas_debug.bridge.interpret.tpu_run import Copy, CopyObserver, KernelRun, range_of, reporters

MAX_SUSPECTED = 8
"""Maximum races noticed in one run of a kernel; its later accesses are not compared."""


@dataclass(frozen=True, eq=False)
class Flight:
    """One side of a copy: what it reads, or what it writes."""

    touch: Touch
    copy: Copy

    @property
    def is_over(self) -> bool:
        """Whether the kernel waited for the copy, or the interpreter has performed it."""
        if self.copy.bytes_left <= 0 or self.copy.is_polled or self.copy.dma is None:
            return True
        state = self.copy.dma.state
        if self.touch.writes:
            return state is interpreter.DmaState.COMPLETED
        return state is not interpreter.DmaState.STARTED


def accessed(run: KernelRun, place: Place, arguments: Mapping[str, Any], *, writes: bool) -> None:
    """Compare a load or store of a core with the copies in flight."""
    where = (*place.thread, int(arguments["buffer_id"]))
    if where not in run.flights or arguments.get("mask") is not None:
        return
    touch = _touch(place, run.buffer(*where), arguments["transforms"], writes=writes)
    if touch is not None:
        _compare(run, where, touch)


Side = tuple[Point, Touch]


def sides(
    run: KernelRun, place: Place, arguments: Mapping[str, Any], source: Point, destination: Point
) -> Sequence[Side | None]:
    """Return what a copy reads and what it writes, compared with the copies in flight.

    Args:
      source: device, core and id of the buffer.
      destination: the same.
    """
    if not _is_wanted(run):
        return (None, None)
    with run.lock:
        is_first, run.has_copied = not run.has_copied, True
    if is_first and (copies := _observer()) is not None:
        copies.copied(run.kernel.name, "tpu")
    found: list[Side | None] = []
    for where, part, writes in ((source, "src", False), (destination, "dst", True)):
        touch = _touch(place, run.buffer(*where), arguments[f"{part}_transforms"], writes=writes)
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


def _touch(place: Place, buffer: Buffer | None, transforms: Any, *, writes: bool) -> Touch | None:
    range_ = range_of(transforms)
    if buffer is None or range_ is None or not _is_dense(range_):
        return None
    return Touch(place=place, buffer=buffer, range=range_, writes=writes)


def _is_dense(range_: Range) -> bool:
    return all(not isinstance(index, slice) or index.step in (None, 1) for index in range_)


def _compare(run: KernelRun, where: Point, touch: Touch) -> None:
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
        if words.overlap(touch.range, other.range, touch.buffer.shape):
            run.suspected.add(pair)
            found = words.data_race(touch, other, was_filled=False)
            if (copies := _observer()) is not None:
                copies.suspected(found)
