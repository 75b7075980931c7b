"""Accesses out of bounds, where the program ids and loop counters alone decide it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, at, points_of
from pallas_debug.bridge.walk.events import Dim, Event, View
from pallas_debug.findings.wording import bounds


@dataclass(frozen=True, kw_only=True)
class EventSpot:
    """The first place where an event goes wrong.

    Attributes:
      spot: index into the event's arrays: axes of vectorised loops, then the grid.
    """

    spot: tuple[int, ...]
    point: tuple[int, ...]
    loops: tuple[int, ...]


def look(subject: Subject) -> Result:
    """Report reads, writes and copies that certainly leave their buffer."""
    result = Result()
    for event in subject.walked.events:
        if not event.certain:
            continue
        if event.what in ("read", "write"):
            _bounds(subject, event, event.view, event.what, result)
        elif event.what == "dma_start":
            _bounds(subject, event, event.other, "read", result)
            _bounds(subject, event, event.view, "write", result)
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
        loops=tuple(int(i) for i in loops[first]),
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
    position = view.buffer.position
    block = None if position is None else subject.block_at(position)
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
        one.what == "read" and one.number < event.number and one.view.buffer.space == "smem"
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
