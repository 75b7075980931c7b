"""Elements of outputs that no store can reach, although their block is visited.

Works for every dtype, and for outputs in HBM that are written by copies. Every store is counted
wherever it may happen, so the remaining elements are certainly unwritten; an output with a store to
an unknown place is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, at
from pallas_debug.bridge.walk.events import Dim, Event
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.bridge.walk.operations import operations
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.memory import WhyUnwritten, some
from pallas_debug.findings.regions import part_of
from pallas_debug.model import Finding, SourceLine

MAX_ELEMENTS = 1 << 22
"""Maximum number of elements of an output."""

MAX_STORES = 1 << 12
"""Maximum number of grid points, and of stores over all grid points and iterations."""

MAX_SPOTS = 1 << 22
"""Maximum product of grid points and iterations at which a store may happen."""


def look(subject: Subject, known: Collection[str]) -> Result:
    """Report outputs with a part that is never written.

    Args:
      known: outputs that already have a finding about their blocks, which are skipped.
    """
    result = Result()
    grid = subject.grid
    for number, block in enumerate(grid.outputs):
        if number in grid.aliased or block.name in known or 0 in block.shape:
            continue
        if 0 in grid.sizes:  # the body never runs
            line = subject.site.line("grid", grid.number(grid.sizes.index(0)))
            result.findings.append(_whole(subject, block, "left out", line))
        elif subject.walked.incomplete or "sem" in block.dtype:
            continue
        elif events := subject.stores(block):
            _partly(subject, block, events, result)
        else:
            _without_stores(subject, block, result)
    return result


def _partly(subject: Subject, block: Block, events: list[Event], result: Result) -> None:
    mask = _written(subject, block, events)
    part = None if mask is None else part_of(block.name, ~mask)
    if part is None:
        return
    conditional = all(event.where.size > 1 or not event.certain for event in events)
    seen = subject.of_block(
        block,
        source=events[0].source,
        index=part.text,
        values={"elements": f"{part.elements} of {part.of}"},
    )
    finding = seen.of(
        Fault.OUTPUT_NOT_WRITTEN,
        part=part.text,
        why="condition" if conditional and not _is_partial(events) else "stores",
        count=some(part.elements, part.of),
    )
    result.findings.append(finding)


def _without_stores(subject: Subject, block: Block, result: Result) -> None:
    """Report an output without a store, or with stores in branches that no grid point takes."""
    lines = [
        operation.source
        for operation in operations(subject.captured)
        if operation.name in ("swap", "addupdate") and operation.ref == block.name
    ]
    why: WhyUnwritten = "condition" if lines else "stores"
    result.findings.append(_whole(subject, block, why, lines[-1] if lines else None))


def unvisited(block: Block, seen: np.ndarray, counts: Sequence[int]) -> str | None:
    """Describe the elements of the blocks that no grid point visits; None if there are too many.

    Args:
      seen: mask of the visited blocks, of which there are `counts` along each dimension.
    """
    if math.prod(block.shape) > MAX_ELEMENTS:
        return None
    mask = ~seen.reshape(counts)
    for axis, (dim, size) in enumerate(zip(block.dims, block.shape, strict=True)):
        mask = mask.repeat(1 if dim.kind == "squeezed" else dim.size, axis)
        mask = mask.take(range(size), axis)
    part = part_of(block.name, mask)
    return None if part is None else part.text


def _whole(subject: Subject, block: Block, why: WhyUnwritten, source: SourceLine | None) -> Finding:
    index = f"{block.name}[{', '.join(f'0:{size}' for size in block.shape) or '...'}]"
    seen = subject.of_block(block, source=source, index=index)
    return seen.of(Fault.OUTPUT_NOT_WRITTEN, part=index, why=why)


def _is_partial(events: list[Event]) -> bool:
    """Return whether any store writes less than its whole buffer."""
    return any(not dim.is_whole for e in events for dim in e.view.box or ())


def _written(subject: Subject, block: Block, events: list[Event]) -> np.ndarray | None:
    """Mask of the elements that stores may reach or that are in no visited block."""
    if math.prod(block.shape) > MAX_ELEMENTS or min(block.shape, default=1) < 0:
        return None
    if math.prod(subject.grid.sizes) > MAX_STORES:
        return None
    dims = subject.indices[block.position].dims
    if dims is None:
        return None
    if any(dim.kind not in ("blocked", "squeezed") for dim in block.dims):
        return None
    mask = np.zeros(block.shape, bool)
    visited = np.zeros(block.shape, bool)
    total = 0
    sizes = subject.grid.sizes
    for event in events:
        box = event.view.box
        if box is None or event.remote or any(d.start is None or d.size is None for d in box):
            return None
        shape = _shape(event, box, sizes)
        if math.prod(shape) > MAX_SPOTS:
            return None
        for spot in np.argwhere(np.broadcast_to(event.where, shape)):
            total += 1
            if total > MAX_STORES:
                return None
            _mark(mask, block, dims, tuple(map(int, spot)), box, len(sizes))
    for point in np.ndindex(*sizes):
        _mark(visited, block, dims, point, None, len(sizes))
    return mask | ~visited


def _shape(event: Event, box: tuple[Dim, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Number of loop iterations and grid points at which an event may happen, per axis."""
    starts = [dim.start for dim in box if dim.start is not None]
    return np.broadcast_shapes(event.where.shape, *(s.shape for s in starts), sizes or (1,))


def _mark(
    mask: np.ndarray,
    block: Block,
    dims: tuple[np.ndarray, ...],
    spot: tuple[int, ...],
    box: tuple[Dim, ...] | None,
    rank: int,
) -> None:
    """Set the elements of a grid point's block in the mask, or only the part in `box`."""
    point = spot[len(spot) - rank :] if rank else ()
    inner = iter(box or ())
    where = []
    for dim, index in zip(block.dims, dims, strict=True):
        origin = at(index, point) * (dim.size if dim.kind == "blocked" else 1)
        if box is None or dim.kind == "squeezed":
            where.append(slice(origin, origin + dim.size))
            continue
        part = next(inner)
        start = origin + (at(part.start, spot) if part.start is not None else 0)
        stop = start + ((part.size or 1) - 1) * part.stride + 1
        where.append(slice(max(start, 0), min(stop, origin + dim.size), part.stride))
    mask[tuple(where)] = True
