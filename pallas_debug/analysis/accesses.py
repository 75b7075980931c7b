"""Checks of reads and writes: out of bounds, false hints, uninitialised or unwritten memory.

Reports only what is certain to happen. An access under an unknown condition is left to the engines
that run the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pallas_debug.analysis import visits
from pallas_debug.analysis.reach import covered_by, slice_starts, stores
from pallas_debug.analysis.subject import Result, Subject, at, points_of
from pallas_debug.bridge.walk.events import Dim, Event, Origin, View
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.bridge.walk.operations import operations
from pallas_debug.findings.wording import bounds, contents, numbers
from pallas_debug.findings.wording.facts import OtherCore, array_text, block_text
from pallas_debug.model import SourceLine

MAX_POINTS = 1 << 22
"""Maximum number of grid points examined one by one."""

NARROW = {"bfloat16": 8, "float16": 11}
"""Mantissa bits of narrow floats, including the implicit leading bit."""

LONG_SUM = 8
"""Minimum number of terms at which a sum in such a float loses significant precision."""


@dataclass(frozen=True, kw_only=True)
class EventSpot:
    """The first place where an event goes wrong.

    Attributes:
      spot: index into the event's arrays: axes of vectorised loops, then the grid.
    """

    spot: tuple[int, ...]
    point: tuple[int, ...]
    loops: tuple[int, ...]


def look(subject: Subject, revisited: frozenset[str]) -> Result:
    """Run all checks of this module.

    Args:
      revisited: outputs with a finding about their visits; their contents are not checked.
    """
    result = Result()
    for event in subject.walked.events:
        if not event.certain:
            continue
        if event.what in ("read", "write"):
            _bounds(subject, event, event.view, event.what, result)
        elif event.what == "dma_start":
            _bounds(subject, event, event.other, "read", result)
            _bounds(subject, event, event.view, "write", result)
        elif event.what == "hint":
            _hint(subject, event, result)
        elif event.what == "check":
            _check(subject, event, result)
    _padding(subject, result)
    _sums(subject, result)
    if not subject.walked.incomplete:
        _unwritten(subject, revisited, result)
        _uninitialized(subject, revisited, result)
    return result


def first_spot(event: Event, bad: np.ndarray, rank: int) -> EventSpot:
    """Return the first true entry of an event's array, ordered by grid point, then by iteration."""
    spots = np.argwhere(bad)
    loops = spots[:, : bad.ndim - rank][:, ::-1]  # outermost first
    keys = np.concatenate([spots[:, bad.ndim - rank :], loops], axis=1)
    first = int(np.lexsort(keys.T[::-1])[0]) if keys.shape[1] else 0
    spot = tuple(int(i) for i in spots[first])
    return EventSpot(
        spot=spot,
        point=tuple(int(i) for i in spots[first][bad.ndim - rank :]),
        loops=(*event.loops, *(int(i) for i in loops[first])),
    )


def _bounds(subject: Subject, event: Event, view: View | None, what: str, result: Result) -> None:
    """Check that each index of an access lies within the dimension it indexes."""
    for level, dims in enumerate(view.levels if view else ()):
        for number, dim in enumerate(dims):
            if dim.start is None or dim.size is None or dim.bound < 0:
                continue
            last = dim.bound - 1 - (dim.size - 1) * dim.stride
            if dim.start.min() >= 0 and dim.start.max() <= last:
                continue
            bad = event.where & ((dim.start < 0) | (dim.start > last))
            if bad.any() and view is not None:
                _outside(subject, event, view, (level, number), bad, what, result)
                return


def _outside(
    subject: Subject, event: Event, view: View, place: tuple[int, int], bad: np.ndarray,
    what: str, result: Result,
) -> None:  # fmt: skip
    level, number = place
    dims = view.levels[level]
    dim = dims[number]
    found = first_spot(event, bad, len(subject.grid.sizes))
    start = at(dim.start, found.spot) if dim.start is not None else 0
    earlier = "".join(f".at[{_text(dims, found.spot)}]" for dims in view.levels[:level])
    index = f"{view.buffer.name}{earlier}[{_text(dims, found.spot)}]"
    block = _block_of(subject, view)
    finding = bounds.out_of_bounds(
        subject.sighting(
            source=event.source,
            grid_point=found.point,
            loop=found.loops,
            operand=view.buffer.name,
            index=index,
            shape=str(view.buffer),
            values={"start": str(start)},
            count=points_of(bad, subject.grid.sizes),
        ),
        writes=what == "write",
        dim=number,
        start=start,
        size=dim.size if dim.is_slice else None,
        bound=dim.bound,
        stride=dim.stride,
        follows=None if _reads_scalars(subject, event) else _follows(dim, len(subject.grid.sizes)),
        is_block=block is not None and not block.is_whole,
        is_scratch=view.buffer.kind in ("scratch", "scoped"),
        computed=subject.index_lines.of(event.source, number),
    )
    result.findings.append(finding)


def _reads_scalars(subject: Subject, event: Event) -> bool:
    """Return whether a scalar that may be the index is loaded from SMEM before this event."""
    return any(
        one.what == "read"
        and one.number < event.number
        and one.view is not None
        and one.view.buffer.space == "smem"
        for one in subject.walked.events
    )


def _follows(dim: Dim, rank: int) -> Literal["loop", "grid"] | None:
    """Axes that the start of an index depends on; axes before those of the grid belong to loops."""
    shape = dim.start.shape if dim.start is not None else ()
    loops = len(shape) - rank
    if any(size > 1 for size in shape[: max(loops, 0)]):
        return "loop"
    return "grid" if any(size > 1 for size in shape) else None


def _text(dims: tuple[Dim, ...], spot: tuple[int, ...]) -> str:
    return ", ".join(_dim_text(dim, spot) for dim in dims)


def _dim_text(dim: Dim, spot: tuple[int, ...]) -> str:
    if dim.start is None or dim.size is None or dim.start.ndim > max(len(spot), 1):
        return "…"
    start = at(dim.start, spot)
    if not dim.is_slice:
        return str(start)
    stop = start + (dim.size - 1) * dim.stride + 1
    return f"{start}:{stop}" + (f":{dim.stride}" if dim.stride != 1 else "")


def _hint(subject: Subject, event: Event, result: Result) -> None:
    if event.value is None:
        return
    off = event.value % event.divisor != 0
    bad = event.where & off if off.any() else off
    if not bad.any():
        return
    found = first_spot(event, bad, len(subject.grid.sizes))
    value = at(event.value, found.spot)
    seen = subject.sighting(
        source=event.source,
        grid_point=found.point,
        loop=found.loops,
        values={"value": str(value), "divisor": str(event.divisor)},
        count=points_of(bad, subject.grid.sizes),
    )
    result.findings.append(
        numbers.false_hint(seen, value=value, divisor=event.divisor, of_pipeline=event.of_pipeline)
    )


def _check(subject: Subject, event: Event, result: Result) -> None:
    """Report a user's own check whose condition is known to fail."""
    if event.value is None or not (event.where & event.value).any():
        return
    bad = event.where & event.value
    found = first_spot(event, bad, len(subject.grid.sizes))
    seen = subject.sighting(
        source=event.source,
        grid_point=found.point,
        loop=found.loops,
        count=points_of(bad, subject.grid.sizes),
    )
    result.findings.append(contents.debug_check_false(seen, points=subject.grid.points))


# Padding


def _padding(subject: Subject, result: Result) -> None:
    """Report padding of a ragged last block that is reduced without a mask."""
    events = subject.walked.events
    reached = {
        event.number: ragged
        for event in events
        if event.what == "reduce" and event.certain and (ragged := _ragged(subject, event))
    }
    for number, (block, dim, bad, read) in reached.items():
        event = events[number]
        # Zero times a garbage integer is zero, so masking one side of such a product is enough.
        is_product = event.operation == "dot_general"
        if is_product and "int" in block.dtype and not {number - 1, number + 1} & reached.keys():
            continue
        found = first_spot(event, bad, len(subject.grid.sizes))
        size, bound = block.dims[dim].size, block.dims[dim].bound
        seen = subject.of_block(
            block,
            source=event.source,
            other=None if read.source == event.source else read.source,
            grid_point=found.point,
            loop=found.loops,
            values={"valid": str(bound % size), "block": str(size)},
        )
        finding = contents.padding_read(
            seen, operation=event.operation, dim=dim, valid=bound % size, size=size
        )
        result.findings.append(finding)


def _ragged(subject: Subject, event: Event) -> tuple[Block, int, np.ndarray, Event] | None:
    """Operand whose padding is reduced, with its dimension, the points where, and the read."""
    for origin in event.origins:
        read = subject.walked.events[origin.event]
        block = _block_of(subject, read.view)
        dims = subject.indices[block.position].dims if block else None
        if block is None or dims is None or block.kind != "input":
            continue
        kept = [i for i, dim in enumerate(block.dims) if dim.kind != "squeezed"]
        for axis in event.axes:
            own = origin.axes[axis] if axis < len(origin.axes) else None
            if own is None or own >= len(kept):
                continue
            dim = block.dims[kept[own]]
            if dim.counts_blocks and dim.bound > 0 and dim.bound % dim.size:
                bad = event.where & (dims[kept[own]] == dim.blocks - 1)
                if bad.any():
                    return block, kept[own], bad, read
    return None


def _block_of(subject: Subject, view: View | None) -> Block | None:
    if view is None or view.buffer.position is None:
        return None
    number = view.buffer.position - len(subject.grid.tables)
    return subject.grid.blocks[number] if 0 <= number < len(subject.grid.blocks) else None


# Sums in narrow floats


def _sums(subject: Subject, result: Result) -> None:
    """Report narrow float buffers used as long-running accumulators."""
    events = subject.walked.events
    for event in events:
        if event.what != "write" or not event.certain or event.view is None:
            continue
        buffer = event.view.buffer
        if buffer.dtype not in NARROW or not _adds_to_itself(subject, event):
            continue
        fresh = sum(
            _times(subject, other)
            for other in events
            if other.what == "write"
            and other.view is not None
            and other.view.buffer.number == buffer.number
            and not _adds_to_itself(subject, other)
        )
        steps = _times(subject, event) // max(fresh, 1)
        if steps < LONG_SUM:
            continue
        seen = subject.sighting(
            source=event.source,
            operand=buffer.name,
            shape=str(buffer),
            values={"terms": str(steps)},
        )
        finding = numbers.low_precision_accumulator(
            seen, terms=steps, dtype=buffer.dtype, bits=NARROW[buffer.dtype]
        )
        result.findings.append(finding)


def _adds_to_itself(subject: Subject, event: Event) -> bool:
    buffer = event.view.buffer.number if event.view else None
    return any(_is_own(subject, origin, buffer) for origin in event.origins)


def _is_own(subject: Subject, origin: Origin, buffer: int | None) -> bool:
    read = subject.walked.events[origin.event].view
    own = read is not None and read.buffer.number == buffer
    return own and origin.added and origin.dtype in NARROW


def _times(subject: Subject, event: Event) -> int:
    """Number of times that an event happens over all grid points and iterations."""
    sizes = subject.grid.sizes
    total = int(np.count_nonzero(event.where))
    shape = event.where.shape[event.where.ndim - len(sizes) :]
    for size, dim in zip(sizes, shape, strict=True):
        total *= size if dim == 1 else 1
    return total


# Unwritten and uninitialised memory


def _unwritten(subject: Subject, revisited: frozenset[str], result: Result) -> None:
    """Report output blocks for which no store is reached at any of their grid points."""
    grid = subject.grid
    if 0 in grid.sizes:
        return
    buffers = _output_buffers(subject)
    for number, block in enumerate(grid.outputs):
        if number in grid.aliased or block.name in revisited or 0 in block.shape:
            continue
        if "sem" in block.dtype:
            continue
        buffer = buffers.get(len(grid.tables) + block.position)
        events = stores(subject, buffer) if buffer is not None else []
        covered = covered_by(subject, events)
        if covered.all():
            continue
        ids = visits.block_ids(subject, block) if not block.is_whole else None
        if ids is None:
            if not covered.any():
                _never_written(subject, block, events, (0,) * len(block.shape), None, result)
            continue
        if grid.points > MAX_POINTS:
            result.left_out.append(
                f"whether every block of {block.name} is written: {grid.points:,} grid points are "
                "too many to examine individually"
            )
            continue
        ids, covered = np.broadcast_arrays(ids, covered)
        written = np.isin(ids, np.unique(ids[covered]))
        if written.all():
            continue
        spot = tuple(int(i) for i in np.argwhere(~written)[0])
        dims = subject.indices[block.position].dims or ()
        index = tuple(at(dim, spot) for dim in dims)
        _never_written(subject, block, events, index, spot, result)


def _never_written(
    subject: Subject, block: Block, events: list[Event], index: tuple[int, ...],
    point: tuple[int, ...] | None, result: Result,
) -> None:  # fmt: skip
    shape = array_text(block.dtype, block.shape)
    lines = [event.source for event in events] or _stores_not_reached(subject, block)
    finding = contents.output_not_written(
        subject.of_block(
            block,
            source=lines[-1] if lines else None,
            grid_point=point,
            index=block_text(block.name, index),
            values={"block": str(index)},
        ),
        what=f"block {index} of {block.name}, {shape},",
        why="condition" if lines else "no store",
    )
    result.findings.append(finding)


def _stores_not_reached(subject: Subject, block: Block) -> list[SourceLine | None]:
    """Lines that store to an output, including those in branches that no grid point takes."""
    return [
        operation.source
        for operation in operations(subject.captured)
        if operation.name in ("swap", "addupdate") and operation.ref == block.name
    ]


def _output_buffers(subject: Subject) -> dict[int, int]:
    """Buffer numbers of the kernel's own refs that the kernel accesses, by position."""
    return {
        view.buffer.position: view.buffer.number
        for event in subject.walked.events
        for view in (event.view, event.other)
        if view is not None and view.buffer.position is not None
    }


def _uninitialized(subject: Subject, revisited: frozenset[str], result: Result) -> None:
    """Report reads before the first write whose value is stored without a select in between."""
    events = subject.walked.events
    kept: dict[int, list[Event]] = {}
    for event in events:
        if event.what == "write" and event.certain:
            for origin in event.origins:
                kept.setdefault(origin.event, []).append(event)
    reported: set[int] = set()
    for number in sorted(kept):
        read = events[number]
        if read.view is None or not read.certain or read.view.buffer.number in reported:
            continue
        buffer = read.view.buffer
        first = _first_visits(subject, read, revisited)
        if first is None:
            continue
        where = read.where
        while where.ndim > len(subject.grid.sizes):
            where = where[0]  # first iteration
        used = where & covered_by(subject, kept[number])
        bad = used & first & ~covered_by(subject, stores(subject, buffer.number, number))
        if not bad.any():
            continue
        reported.add(buffer.number)
        found = first_spot(read, bad, len(subject.grid.sizes))
        dims = read.view.levels[-1] if read.view.levels else ()
        seen = subject.sighting(
            source=read.source,
            grid_point=found.point,
            operand=buffer.name,
            index=f"{buffer.name}[{_text(dims, found.spot) or '...'}]",
            shape=str(buffer),
        )
        other_core = None
        grid = subject.grid
        axes = [d for d, step in enumerate(found.point) if step and grid.parallel[d]]
        if axes and buffer.kind != "output" and not grid.is_of_cores:
            steps = [d for d, n in enumerate(grid.sizes) if n != 1 and not grid.parallel[d]]
            other_core = OtherCore(axes=grid.numbers(axes), steps=grid.numbers(steps))
        finding = contents.uninitialized_read(
            seen,
            other_core=other_core,
            before="branches" if stores(subject, buffer.number, number) else "none",
            stays=bool(grid.sizes) and buffer.kind != "scoped" and not grid.is_of_cores,
        )
        result.findings.append(finding)


def _first_visits(subject: Subject, read: Event, revisited: frozenset[str]) -> np.ndarray | None:
    """Grid points where the kernel has not yet written a buffer; None if that is unknown."""
    grid = subject.grid
    buffer = read.view.buffer if read.view else None
    if buffer is None or buffer.is_semaphore or grid.points > MAX_POINTS:
        return None
    if buffer.kind == "scoped":
        return np.ones((1,) * len(grid.sizes), bool)
    if buffer.kind == "scratch":
        return slice_starts(subject)
    if buffer.kind != "output" or buffer.name in revisited:
        return None
    block = _block_of(subject, read.view)
    if block is None or block.space not in ("default", "vmem", "smem"):
        return None
    if block.position - grid.num_inputs in grid.aliased:
        return None
    ids = visits.block_ids(subject, block)
    if ids is None:
        return None
    flat = np.broadcast_to(ids, grid.sizes).ravel()
    changed = np.ones(flat.shape, bool)
    changed[1:] = np.diff(flat) != 0
    return changed.reshape(grid.sizes)
