"""Accesses out of bounds, where the program ids and loop counters alone decide it."""

from __future__ import annotations

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, at, first_spot, points_of
from pallas_debug.bridge.walk.events import Dim, Event, View
from pallas_debug.findings.bounds import Outside, computed
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.regions import slice_text


def look(subject: Subject) -> Result:
    """Report reads, writes and copies that certainly leave their buffer."""
    result = Result()
    for event in subject.walked.events:
        if event.what in ("read", "write"):
            _access(subject, event, event.view, event.what, result)
        elif event.what == "dma_start":
            _access(subject, event, event.other, "read", result)
            _access(subject, event, event.view, "write", result)
    return result


def outside(event: Event, view: View | None) -> tuple[int, int, np.ndarray] | None:
    """Find an index that certainly leaves its dimension: level, dimension, and mask of where."""
    for level, dims in enumerate(view.levels if view and event.certain else ()):
        for number, dim in enumerate(dims):
            if dim.start is None or dim.size is None or dim.bound < 0:
                continue
            last = dim.bound - 1 - (dim.size - 1) * dim.stride
            bad = (dim.start < 0) | (dim.start > last)
            if bad.any() and (bad := event.where & bad).any():
                return level, number, bad
    return None


def _access(subject: Subject, event: Event, view: View | None, what: str, result: Result) -> None:
    place = outside(event, view)
    if place is None or view is None:
        return
    level, number, bad = place
    rank = len(subject.grid.sizes)
    point, loops = first_spot(bad, rank)
    spot = (*reversed(loops), *point)
    dims = view.levels[level]
    dim = dims[number]
    start = at(dim.start, spot) if dim.start is not None else 0
    name = view.buffer.name
    earlier = "".join(f".at[{_text(dims, spot)}]" for dims in view.levels[:level])
    seen = subject.sighting(
        source=event.source,
        grid_point=point,
        loop=loops,
        operand=name,
        index=f"{name}{earlier}[{_text(dims, spot)}]",
        shape=str(view.buffer),
        values={"start": str(start)},
        count=points_of(bad, subject.grid.sizes),
    )
    finding = seen.of(
        Fault.OUT_OF_BOUNDS_WRITE if what == "write" else Fault.OUT_OF_BOUNDS_READ,
        slice=Outside(
            dim=number,
            start=start,
            size=dim.size if dim.is_slice else None,
            bound=dim.bound,
            stride=dim.stride,
        ),
        origin=computed(subject.index_lines.of(event.source, number), event.source),
    )
    result.findings.append(finding)


def _text(dims: tuple[Dim, ...], spot: tuple[int, ...]) -> str:
    return ", ".join(_dim_text(dim, spot) for dim in dims)


def _dim_text(dim: Dim, spot: tuple[int, ...]) -> str:
    if dim.start is None or dim.size is None or dim.start.ndim > max(len(spot), 1):
        return "…"
    start = at(dim.start, spot)
    if not dim.is_slice:
        return str(start)
    return slice_text(start, dim.size, dim.stride)
