"""Rules for what another output block has left: which reads are stale, which are meant to be."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from pallas_debug.machine.sanitizer.shadows.outputs import ReplacedWrite
from pallas_debug.machine.sanitizer.shadows.replay import (
    BufferHistory,
    ElementEvent,
    ElementHistory,
    buffer_key,
)
from pallas_debug.machine.sanitizer.shadows.tracking import Point, SuspectRead, TrackedThread


def is_stale(suspect: SuspectRead, thread: TrackedThread, history: ElementHistory) -> bool:
    """Whether a read has the marks of a stale one; whether it matters is another question."""
    writer = suspect.writer
    if writer is None:
        return False
    blocks = [thread.blocks[i] for i in thread.outputs_of(suspect.buffer.name)]
    if not _differ(blocks, thread, suspect.point, writer.point):
        return False
    found = history.buffers[buffer_key(suspect.buffer)]
    if writer.copy is not None:
        return _writes_less(found, suspect, writer.point)
    events = [e for e in found.events[suspect.element] if e.thread == suspect.thread]
    written = [e for e in events if e.writes and e.point == writer.point]
    if not written or written[-1].step is not writer.step:
        return False
    if written[-1].updates:
        return _accumulates(events, blocks, thread, suspect.point) and not _is_whole_total(
            events, found, thread
        )
    return _writes_less(found, suspect, writer.point)


def _differ(blocks: Sequence[Sequence[Point]], thread: TrackedThread, a: Point, b: Point) -> bool:
    """Whether two grid points compute other blocks of each of these outputs."""
    one, other = thread.points.index(a), thread.points.index(b)
    return bool(blocks) and all(of_output[one] != of_output[other] for of_output in blocks)


def _accumulates(
    events: Sequence[ElementEvent], blocks: Sequence[list[Point]], thread: TrackedThread,
    reader: Point,
) -> bool:  # fmt: skip
    """Whether an element is updated at several grid points that compute one block.

    So the axis along which they differ is that of a sum, and the reader's block has several.
    """
    positions = {point: i for i, point in enumerate(thread.points)}
    if not any(_length(of_output, positions[reader]) >= 2 for of_output in blocks):
        return False
    updated = _updated(events, positions)
    return any(
        second == first + 1 and of_output[first] == of_output[second]
        for of_output in blocks
        for first, second in itertools.pairwise(updated)
    )


def _is_whole_total(
    events: Sequence[ElementEvent], found: BufferHistory, thread: TrackedThread
) -> bool:
    """Whether nothing but the updates uses a sum before its last one: a total over all blocks."""
    positions = {point: i for i, point in enumerate(thread.points)}
    used = [positions[point] for point in found.used_at if point in positions]
    return bool(used) and min(used) >= _updated(events, positions)[-1]


def _updated(events: Sequence[ElementEvent], positions: Mapping[Point, int]) -> list[int]:
    """Positions of the grid points that update an element, in order."""
    return sorted({positions[e.point] for e in events if e.writes and e.updates})


def _length(blocks: list[Point], position: int) -> int:
    """Number of consecutive grid points that visit the block at a position."""
    block = blocks[position]
    first = last = position
    while first > 0 and blocks[first - 1] == block:
        first -= 1
    while last + 1 < len(blocks) and blocks[last + 1] == block:
        last += 1
    return last - first + 1


def _writes_less(found: BufferHistory, suspect: SuspectRead, before: Point) -> bool:
    """Whether the store behind a read wrote less at the reader's grid point than the last time."""
    assert suspect.writer is not None
    stored = found.stores.get(id(suspect.writer.step))
    if stored is None:
        return False
    now, then = stored.early.get(suspect.point), stored.masks.get(before)
    if now is None or then is None:
        return False
    return bool(now.any()) and not (now & ~then).any()


def was_read(conflict: ReplacedWrite, history: ElementHistory) -> bool:
    """Whether anything read an element between two writes to it."""
    events = history.buffers[buffer_key(conflict.buffer)].events[conflict.element]
    seen_first = False
    for event in events:
        if not event.writes:
            if seen_first:
                return True
            continue
        at = (event.step, event.point, event.iterations)
        if seen_first and at == (conflict.step, conflict.point, conflict.iterations):
            return False
        seen_first = at == (
            conflict.before.step, conflict.before.point, conflict.before.iterations
        )  # fmt: skip
    return False
