"""Rules for reads of values left by another output block: which are stale, and which intended."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording.facts import OtherCore
from pallas_debug.machine.sanitizer.shadows import reach, resets
from pallas_debug.machine.sanitizer.shadows.outputs import ReplacedWrite
from pallas_debug.machine.sanitizer.shadows.replay import (
    BufferHistory,
    ElementEvent,
    ElementHistory,
    buffer_key,
)
from pallas_debug.machine.sanitizer.shadows.shadow import SuspectRead
from pallas_debug.machine.sanitizer.shadows.tracked import Block, Point, TrackedThread


def other_core(suspect: SuspectRead, launch: Launch) -> OtherCore:
    """Return where a core may begin that reads what a grid point on another core has left."""
    writer, parallel = suspect.writer, launch.parallel
    assert writer is not None
    points = suspect.point, writer.point
    return OtherCore(
        axes=launch.numbers(
            axis
            for axis, (here, there) in enumerate(zip(*points, strict=True))
            if parallel[axis] and here != there
        ),
        source=writer.point,
        steps=launch.numbers(
            axis for axis, size in enumerate(launch.grid) if not parallel[axis] and size != 1
        ),
    )


def is_stale(
    suspect: SuspectRead, thread: TrackedThread, history: ElementHistory, launch: Launch, *,
    is_later: bool = False, adds_again: bool = False,
) -> bool:  # fmt: skip
    """Return whether a read looks stale; whether it matters is a separate question.

    Args:
      is_later: whether the step has read values left by another block before. Then the block of
        this read itself has to be summed over several steps, without a reset between them: a state
        may be carried to most blocks, and be reset within one that several sequences share.
      adds_again: whether the step only adds to the buffer, and data that were copied for the other
        block are copied again for this one. Then the steps may also be iterations of a loop.
    """
    writer = suspect.writer
    if writer is None:
        return False
    found = history.buffers[buffer_key(suspect.buffer)]
    outputs = thread.outputs_of(suspect.buffer.name)
    blocks = [thread.blocks_at_moments(output) for output in outputs]
    if not _differ(blocks, suspect.moment, writer.moment):
        return False
    if writer.copy is not None:
        return _writes_less(found, suspect, writer.point)
    events = [e for e in found.events[suspect.element] if e.thread == suspect.thread]
    written = [e for e in events if e.writes and e.moment == writer.moment]
    if not written or written[-1].step is not writer.step:
        return False
    following = min(writer.moment + 1, suspect.moment)
    if _begins_next(events, writer.moment) and not _differ(blocks, suspect.moment, following):
        return False
    if written[-1].updates and axes_of_row(suspect, thread, history, launch) is not None:
        return True
    if is_later and not _goes_on(events, blocks, suspect.moment):
        return False
    if written[-1].updates:
        goes_on = [e.moment for e in events if e.updates and e.step is writer.step]
        if not any(b[moment] == b[suspect.moment] for b in blocks for moment in goes_on):
            return False  # a finished sum that another block uses
        is_sum = _accumulates(events, thread, outputs, suspect.moment)
        is_sum = is_sum or (adds_again and _adds_up(events, suspect.moment))
        return is_sum and not _is_whole_total(events, found)
    return _writes_less(found, suspect, writer.point)


def axes_of_sum(
    suspect: SuspectRead, thread: TrackedThread, history: ElementHistory, launch: Launch
) -> tuple[int, ...] | None:
    """Return the axes whose program ids are 0 where a sum or a row of blocks begins, if known."""
    axes = resets.axes_of_sum(suspect, thread, history, launch)
    if axes is None and (of_row := axes_of_row(suspect, thread, history, launch)) is not None:
        return launch.numbers(of_row)
    return axes


def axes_of_row(
    suspect: SuspectRead, thread: TrackedThread, history: ElementHistory, launch: Launch
) -> tuple[int, ...] | None:
    """Return the axes of a row of blocks, if a read finds the state in which the last one ended.

    Each step of a scan has a block of its own, and carries its state to the next one. A scan over
    all blocks may go on into the next row, so that is a fault only if

    - the resets differ between the rows: there are several in a row, and none in a later one;
    - the state has an entry for each of several rows of a block, and the next blocks are of other
      rows; or
    - each step multiplies the state, as a recurrence does. Counts and cumulative sums do not.
    """
    writer, here = suspect.writer, suspect.point
    found = history.buffers[buffer_key(suspect.buffer)]
    events = [e for e in found.events[suspect.element] if e.thread == suspect.thread and e.writes]
    points = thread.points
    if writer is None or thread.has_pipelines or points[suspect.moment - 1] != writer.point:
        return None
    axes = [axis for axis, size in enumerate(launch.grid) if size != 1]
    row = next((axis for axis in axes if here[axis] != writer.point[axis]), len(here))
    inner = [axis for axis in axes if axis > row]
    every = set(range(len(points)))
    blocks = [thread.blocks_at_points(output) for output in thread.outputs_of(suspect.buffer.name)]
    if not inner or any(here[axis] for axis in inner) or any(len(set(b)) < len(b) for b in blocks):
        return None
    if found.used_at != every or {e.moment for e in events if e.updates} != every:
        return None
    replaced = [e for e in events if not e.updates]
    reset_at = {e.point for e in replaced}
    chosen = [axis for axis in axes if not any(point[axis] for point in reset_at)]
    if row not in chosen or reset_at != {p for p in points if not any(p[axis] for axis in chosen)}:
        return None
    if not all(reach.decided_by_position(launch, one) for e in replaced for one in e.conditions):
        return None
    if sum(point[:row] == here[:row] for point in reset_at) < 2:
        sizes = _extents(suspect, thread, row)
        is_of_rows = bool(sizes) and all(
            size > 1 and size in suspect.buffer.content.shape for size in sizes
        )
        if not is_of_rows and not (sizes and _recurs(suspect, launch)):
            return None
    return tuple(inner)


def _extents(suspect: SuspectRead, thread: TrackedThread, row: int) -> list[int]:
    """Sizes, in the blocks of outputs, of the dimensions along which an axis moves them alone."""
    found = []
    for output in thread.outputs_of(suspect.buffer.name):
        spec = thread.outputs[output].spec if output < len(thread.outputs) else None
        moved = (spec.projection or ()) if spec is not None else ()
        of_row = [i for i, (axis, _) in enumerate(moved) if axis == row]
        if spec is None or not of_row or not any((axis or 0) > row for axis, _ in moved):
            return []
        found.append(spec.sizes[of_row[0]])
    return found


def _recurs(suspect: SuspectRead, launch: Launch) -> bool:
    """Return whether a state of floats is multiplied at each step."""
    step = suspect.writer.step if suspect.writer is not None else None
    is_float = suspect.buffer.content.dtype.kind not in "biu"
    return is_float and isinstance(step, ir.StoreStep) and reach.is_scaled(launch, step)


def _differ(blocks: Sequence[Sequence[Block]], one: int, other: int) -> bool:
    """Return whether the two moments compute different blocks of each of these outputs."""
    return bool(blocks) and all(of_output[one] != of_output[other] for of_output in blocks)


def _begins_next(events: Sequence[ElementEvent], moment: int) -> bool:
    """Return whether a moment uses a sum, then resets it, and adds to the sum of the next block."""
    own = [event for event in events if event.moment == moment]
    last = max((i for i, event in enumerate(own) if event.writes and not event.updates), default=0)
    return last > 0 and not own[last - 1].writes and any(e.updates for e in own[last:])


def _accumulates(
    events: Sequence[ElementEvent], thread: TrackedThread, outputs: Sequence[int], reader: int
) -> bool:
    """Return whether an element is updated at several consecutive steps that compute one block.

    If so, the axis along which they differ is that of a sum, and the reader's block has several
    steps. Steps are grid points, or moments if there are several updates at a grid point.

    Args:
      reader: moment of the read.
    """
    updated = _updated(events)
    at = [thread.moments[moment] for moment in updated]
    if len(set(at)) == len(at):
        steps, position = at, thread.moments[reader]
        blocks = [thread.blocks_at_points(output) for output in outputs]
    else:
        steps, position = updated, reader
        blocks = [thread.blocks_at_moments(output) for output in outputs]
    if not any(_length(of_output, position) >= 2 for of_output in blocks):
        return False
    return any(
        second == first + 1 and of_output[first] == of_output[second] is not None
        for of_output in blocks
        for first, second in itertools.pairwise(steps)
    )


def _adds_up(events: Sequence[ElementEvent], reader: int) -> bool:
    """Return whether an element is only updated at a moment, several times, before it is used."""
    own = [event for event in events if event.moment == reader]
    last = max((i for i, event in enumerate(own) if event.writes), default=0)
    reads, updates = own[:last:2], own[1 : last + 1 : 2]
    is_sum = not any(e.writes for e in reads) and all(e.writes and e.updates for e in updates)
    return is_sum and len(reads) == len(updates) > 1


def _goes_on(
    events: Sequence[ElementEvent], blocks: Sequence[Sequence[Block]], reader: int
) -> bool:
    """Return whether the moment of a read, and the next for its blocks, only add to an element."""
    if any(reader + 1 >= len(b) or b[reader] is None or b[reader] != b[reader + 1] for b in blocks):
        return False
    added, reset = (
        {e.moment for e in events if e.writes and e.updates == updates} for updates in (True, False)
    )
    moments = {reader, reader + 1}
    return moments <= added and not moments & reset


def _is_whole_total(events: Sequence[ElementEvent], found: BufferHistory) -> bool:
    """Return whether only the updates use a sum before its last update: a total over all blocks."""
    return bool(found.used_at) and min(found.used_at) >= _updated(events)[-1]


def _updated(events: Sequence[ElementEvent]) -> list[int]:
    """Moments at which an element is updated, in order."""
    return sorted({e.moment for e in events if e.writes and e.updates})


def _length(blocks: Sequence[Block], position: int) -> int:
    """Number of consecutive steps that compute the block at a position."""
    block = blocks[position]
    first = last = position
    while first > 0 and blocks[first - 1] == block:
        first -= 1
    while last + 1 < len(blocks) and blocks[last + 1] == block:
        last += 1
    return last - first + 1


def _writes_less(found: BufferHistory, suspect: SuspectRead, before: Point) -> bool:
    """Return whether the store behind a read wrote less at the read's grid point than before."""
    assert suspect.writer is not None
    if suspect.operand != "scratch" or suspect.point == before:
        return False
    stored = found.stores.get(id(suspect.writer.step))
    if stored is None:
        return False
    now, then = stored.early.get(suspect.point), stored.masks.get(before)
    if now is None or then is None:
        return False
    return bool(now.any()) and not (now & ~then).any()


def was_read(conflict: ReplacedWrite, history: ElementHistory) -> bool:
    """Return whether an element was read between two writes to it."""
    events = history.buffers[buffer_key(conflict.buffer)].events[conflict.change.element]
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
