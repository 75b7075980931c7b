"""Hint: along a dimension in which blocks or slices of an input advance, some elements are in none.

Only the projection onto each dimension counts, so what is hinted at is certainly not read. An input
of which unknown parts may be read is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pallas_debug.analysis.subject import Subject
from pallas_debug.bridge.walk.events import Event
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.bridge.walk.walker import too_large
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.regions import part_of
from pallas_debug.model import Hint


def hints(subject: Subject) -> Iterator[Hint]:
    """Yield at most one hint per input."""
    grid = subject.grid
    for block in () if subject.walked.incomplete else grid.blocks[: grid.num_inputs]:
        maps, kinds = subject.indices[block.position].dims, {dim.kind for dim in block.dims}
        reads = subject.reads(block)
        if maps is None or not kinds <= {"blocked", "squeezed"} or not reads:
            continue
        for dim, index in enumerate(maps):
            hint = _along(subject, block, dim, index, reads)
            if hint is not None:
                yield hint
                break


def _along(
    subject: Subject, block: Block, dim: int, index: np.ndarray, reads: list[Event]
) -> Hint | None:
    """Hint at elements that no read reaches along a dimension of an input."""
    along = block.dims[dim]
    kept = [number for number, one in enumerate(block.dims) if one.kind != "squeezed"]
    covered = np.zeros(max(along.bound, 0), bool)
    moves: list[tuple[np.ndarray, int, Event]] = []
    for event in reads:
        start, size, stride = np.asarray(index) * along.size, along.size, 1
        if dim in kept:
            view = event.view if event.other is None else event.other
            part = (view.box or ())[kept.index(dim) : kept.index(dim) + 1]
            if event.what == "escape" or not part or part[0].start is None or not part[0].size:
                return None
            start, size, stride = start + part[0].start, part[0].size, part[0].stride
        places = start.ravel()
        if not too_large(start, event.where):
            start, where = np.broadcast_arrays(start, event.where)
            places = start[where]
        places = np.unique(places)
        moves += [(places, size, event)] if len(places) > 1 else []
        reached = (places[:, None] + stride * np.arange(size)).ravel()
        covered[reached[(reached >= 0) & (reached < along.bound)]] = True
    if covered.all() or not moves:
        return None
    places, size, event = moves[0]
    moved = index.size > 1 and size == along.size
    axes = [axis for axis, steps in enumerate(index.shape) if steps > 1]
    line = subject.site.line("grid", subject.grid.number(axes[0])) if moved else event.source
    left, bound = int((~covered).sum()), along.bound
    missing = part_of(block.name, ~covered)
    message = (
        f"{missing.text if missing else block.name}, along dimension {dim}, is in no block or slice"
    )
    if left == bound % size and np.array_equal(places, np.arange(bound // size) * size):
        what = {1: "columns", 2: "rows"}.get(len(block.shape) - dim, f"of dimension {dim}")
        message = f"{bound} // {size} leaves the last {left} {what} of {block.name} unread"
    return Hint(
        kind=HintKind.UNREAD_INPUT,
        kernel=subject.name,
        digest=subject.captured.kernel.digest,
        message=message,
        source=line or subject.block_line(block),
        operand=block.name,
    )
