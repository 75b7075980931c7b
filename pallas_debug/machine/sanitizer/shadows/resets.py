"""Lines that reset a buffer, their conditions, and where a sum should be reset."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pallas_debug.bridge.instrument.sites import part_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording.facts import Reset, WrittenPart
from pallas_debug.machine.sanitizer.shadows import shadow
from pallas_debug.machine.sanitizer.shadows.replay import (
    BufferHistory,
    BufferKey,
    ElementHistory,
    StoredPart,
    buffer_key,
)
from pallas_debug.machine.sanitizer.shadows.tracked import Point, TrackedThread


def writes(
    found: BufferHistory, suspect: shadow.SuspectRead, *, with_loops: bool, as_resets: bool
) -> tuple[Reset, ...]:
    """Find the lines that write the elements of a read; if `as_resets`, only non-updates.

    Args:
      with_loops: whether loop iterations count like grid points.
    """
    name, shape = suspect.buffer.name, suspect.buffer.content.shape
    by_step: dict[int, list[tuple[Point, Point]]] = {}
    steps: dict[int, tuple[ir.MachineStep, tuple[ir.Branch, ...]]] = {}
    for event in found.events[suspect.element]:
        if event.writes and not event.updates:
            points = by_step.setdefault(id(event.step), [])
            steps[id(event.step)] = event.step, event.conditions
            at = event.point, event.iterations if with_loops else ()
            if at not in points:
                points.append(at)
    known = [
        reset(step, around, by_step[key], _index(name, found.stores.get(key), shape), True)
        for key, (step, around) in steps.items()
    ]
    if not known and as_resets:
        known = [
            reset(
                part.step,
                part.conditions,
                [(point, ()) for point in part.points],
                _index(name, part, shape),
                False,
            )
            for part in found.stores.values()
            if part.points
        ]
    return tuple(reset for reset in known if reset is not None)


def ever_written(found: BufferHistory, suspect: shadow.SuspectRead) -> WrittenPart | None:
    """Return the part of a buffer that is written in this run, if it does not include the read."""
    written = found.written
    if written is None or not written.any() or written[suspect.element]:
        return None
    text = part_text(suspect.buffer.name, written)
    lines: dict[bool, set[int]] = {True: set(), False: set()}
    for stored in found.stores.values():
        if (line := stored.step.site.line) is not None:
            lines[isinstance(stored.step, ir.CopyStart)].add(line.line)
    copies, stores = (tuple(sorted(lines[are_copies])) for are_copies in (True, False))
    return None if text is None else WrittenPart(text=text, copies=copies, stores=stores)


def have_run(
    steps: Iterable[ir.MachineStep], histories: Mapping[BufferKey, BufferHistory],
    suspect: shadow.SuspectRead,
) -> bool:  # fmt: skip
    """Return whether any of these stores had written elements of a buffer before they were read."""
    stores = histories[buffer_key(suspect.buffer)].stores
    parts = (stores.get(id(step)) for step in steps)
    return any(p is not None and p.points[:1] and p.points[0] <= suspect.point for p in parts)


def axes_of_sum(
    suspect: shadow.SuspectRead, thread: TrackedThread, history: ElementHistory, launch: Launch
) -> tuple[int, ...] | None:
    """Return the grid axes whose program ids are 0 where the sum in a buffer begins.

    A reset there, before the updates of that grid point, separates all updates of different output
    blocks, but no consecutive updates of the same block, and no update from a later read of it. Of
    several such sets of axes, the largest is returned, because it resets least often.
    If some outputs move on between two updates while others keep their block, it is not known
    whether these are of one sum: then the axes are unknown unless only one set is possible.

    Returns:
      Numbers of the axes; None if no axes do that, if the buffer is not updated twice for one
      block, or if the steps of the sum are not grid points.
    """
    if thread.has_pipelines:
        return None
    events = history.buffers[buffer_key(suspect.buffer)].events[suspect.element]
    own = [event for event in events if event.thread == suspect.thread]
    updated = {thread.moments[event.moment] for event in own if event.writes and event.updates}
    used = {thread.moments[event.moment] for event in own if not event.writes} - updated
    blocks = [thread.blocks_at_points(o) for o in thread.outputs_of(suspect.buffer.name)]
    if not updated:
        return None
    first, *rest = sorted(updated)
    spans: list[tuple[int, int, bool]] = []
    unclear: set[tuple[int, int]] = set()
    for one, other in itertools.pairwise([first, *rest]):
        kept = {of_output[one] == of_output[other] for of_output in blocks}
        spans.append((one, other, True in kept))
        if len(kept) > 1:
            unclear.add((one, other))
    if not any(is_one_sum for *_, is_one_sum in spans):
        return None
    spans += [(max(u for u in updated if u < use), use, True) for use in used if use > first]
    axes = [axis for axis in launch.axes if any(point[axis] for point in thread.points)]
    found = _axes_that_separate(spans, axes, thread, first)
    clear = [span for span in spans if span[:2] not in unclear]
    if unclear and len(_axes_that_separate(clear, axes, thread, first)) > 1:
        return None
    return launch.numbers(found[0]) if found else None


def _axes_that_separate(
    spans: Sequence[tuple[int, int, bool]], axes: Sequence[int], thread: TrackedThread, first: int
) -> list[tuple[int, ...]]:
    """Sets of axes whose program ids are 0 at `first` and between updates of different sums only.

    Args:
      spans: pairs of grid points, and whether they belong to one sum.
    """
    found = []
    for size in range(len(axes), 0, -1):
        for chosen in itertools.combinations(axes, size):
            begins = [not any(point[axis] for axis in chosen) for point in thread.points]
            if begins[first] and all(
                any(begins[one + 1 : other + 1]) != is_one_sum for one, other, is_one_sum in spans
            ):
                found.append(chosen)
    return found


def reset(
    step: ir.MachineStep, around: Sequence[ir.Branch], places: Sequence[tuple[Point, Point]],
    index: str | None, reaches: bool,
) -> Reset | None:  # fmt: skip
    """Describe a step that replaces contents of a buffer; None if its line is unknown.

    Args:
      around: enclosing conditions, outermost first.
      places: grid points and loop iterations of the step.
      index: slice that it writes; None for the whole buffer.
      reaches: whether it writes an element that was read.
    """
    if step.site.line is None:
        return None
    return Reset(
        line=step.site.line.line,
        points=tuple(point for point, _ in places),
        loops=tuple(loop for _, loop in places),
        index=index,
        reaches=reaches,
        condition=_condition(around),
    )


def _condition(around: Sequence[ir.Branch]) -> str | None:
    """Unparse the condition of the innermost `pl.when`; None if it is not on a single line."""
    for branch in reversed(around):
        line = branch.site.line
        text = "" if line is None else line.text or linecache.getline(line.file, line.line)
        _, found, rest = text.partition("pl.when(")
        if not found:
            continue
        depth = 1
        for i, char in enumerate(rest):
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return rest[:i]
        return None
    return None


def part_text(name: str, mask: shadow.Mask) -> str | None:
    """Unparse the elements in a mask as slices; None for all elements."""
    if mask.all():
        return None
    part = part_of(name, mask)
    return None if part is None else part.text


def _index(name: str, stored: StoredPart | None, shape: Sequence[int]) -> str | None:
    """Unparse the region that a store writes; None for the whole buffer, or if it varies."""
    if stored is None or len(stored.regions) != 1:
        return None
    (region,) = stored.regions.values()
    mask = np.zeros(tuple(shape), bool)
    for index in region.ranges():
        mask[index] = True
    return part_text(name, mask)
