"""Export of a timeline in Chrome's JSON trace event format, for Perfetto and `chrome://tracing`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pallas_debug.model import SourceLine
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.timeline.parts import TimelineCopy, TimelinePart
from pallas_debug.profile.timeline.timeline import Timeline

CORE, COPIES = 1, 2
"""Process ids of the core, and of the copies between HBM and its buffers."""

STEPS, WAITS = 1, 2
"""Thread ids in the core, for computation and waits."""


def trace_json(timeline: Timeline) -> str:
    """Return the trace as a JSON object with one event per line."""
    head = {
        "displayTimeUnit": "ns",
        "otherData": metadata(timeline),
    }
    events = ",\n".join(json.dumps(event, ensure_ascii=False) for event in trace_events(timeline))
    text = json.dumps(head, ensure_ascii=False)
    return f'{text[:-1]}, "traceEvents": [\n{events}\n]}}\n'


def metadata(timeline: Timeline) -> dict[str, Any]:
    """Return facts about the whole trace, as strings for the viewers."""
    found = {
        "kernel": timeline.kernel,
        "target": timeline.target,
        "grid": " × ".join(map(str, timeline.grid)) or "none",
        "steps of a core": f"{timeline.steps:,}",
        "cores": str(timeline.cores),
        "compute per step": described(timeline.compute),
        "clock": f"{timeline.clock / 1e6:,.0f} MHz",
        "cycles in all": described(timeline.cycles),
        "stalled": described(timeline.stalled),
    }
    found |= {f"note {n}": note for n, note in enumerate(timeline.notes, 1)}
    return found


def described(figure: Figure) -> str:
    """Format a figure with its unit and its origin."""
    text = " ".join(filter(None, (str(figure), figure.unit if figure.is_known else "")))
    origin = figure.origin if figure.is_known else "missing"
    return f"{text} ({origin}: {figure.note})" if figure.note else f"{text} ({origin})"


def trace_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Return all events, metadata first, then ordered by time."""
    named = [
        *_named("process", CORE, 0, f"core 0 · {timeline.kernel} on {timeline.target}", 0),
        *_named("process", COPIES, 0, "copies between HBM and VMEM or SMEM", 1),
        *_named("thread", CORE, STEPS, "compute", 0),
        *_named("thread", CORE, WAITS, "waits for copies", 1),
    ]
    used = {(c.lane, c.direction) for part in timeline.parts for c in part.copies}
    for number, lane in enumerate(timeline.lanes):
        own = "out" if lane.kind == "output" else "in"
        for direction in ("in", "out"):
            if (number, direction) in used or (direction == own and lane.kind != "other"):
                name = f"DMA {direction}: {lane.name}" + (f" ({lane.note})" if lane.note else "")
                tid = _thread_of(number, direction)
                named += _named("thread", COPIES, tid, name, tid)
    events: list[dict[str, Any]] = []
    for part in timeline.parts:
        events += _part(timeline, part)
    copies = dict.fromkeys(copy for part in timeline.parts for copy in part.copies)
    events += [_copy(timeline, copy) for copy in copies]
    return [*named, *sorted(events, key=lambda event: (event["ts"], event["dur"]))]


def _named(kind: str, pid: int, tid: int, name: str, index: int) -> list[dict[str, Any]]:
    """Return the name and the position of a process or thread."""
    mine = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**mine, "name": f"{kind}_name", "args": {"name": name}},
        {**mine, "name": f"{kind}_sort_index", "args": {"sort_index": index}},
    ]


def _part(timeline: Timeline, part: TimelinePart) -> list[dict[str, Any]]:
    at = partial(_at, timeline)
    compute = timeline.compute
    events: list[dict[str, Any]] = []
    for step, begin, end in part.computing():
        events.append(
            {
                "ph": "X", "cat": "compute", "name": f"step {step}", "pid": CORE, "tid": STEPS,
                "ts": at(begin), "dur": _length(timeline, begin, end),
                "args": {
                    "grid point": list(timeline.point(step)), "cycles": end - begin,
                    "origin": compute.origin,
                },
            }
        )  # fmt: skip
    for wait in part.waits:
        what = "a copy"
        if wait.lane is not None and wait.lane < len(timeline.lanes):
            name = timeline.lanes[wait.lane].name
            what = f"{'fetch' if wait.direction == 'in' else 'write-back'} of {name}"
        events.append(
            {
                "ph": "X", "cat": "wait", "name": f"wait for {what}", "pid": CORE,
                "tid": WAITS, "ts": at(wait.begin), "dur": _length(timeline, wait.begin, wait.end),
                "args": {
                    "step": wait.step, "cycles": wait.end - wait.begin, "origin": "assumed",
                    "note": "the copy is not complete when the core needs it",
                },
            }
        )  # fmt: skip
    return events


def _at(timeline: Timeline, cycles: float) -> float:
    """Convert to microseconds, rounded to nanoseconds as in viewers, so slices do not overlap."""
    return round(timeline.microseconds(cycles), 3)


def _length(timeline: Timeline, begin: float, end: float) -> float:
    return round(_at(timeline, end) - _at(timeline, begin), 3)


def _copy(timeline: Timeline, copy: TimelineCopy) -> dict[str, Any]:
    lane = timeline.lanes[copy.lane]
    source = timeline.sources.get(copy.bundle)
    return {
        "ph": "X", "cat": "dma", "name": _copy_name(copy, lane.kind), "pid": COPIES,
        "tid": _thread_of(copy.lane, copy.direction), "ts": _at(timeline, copy.begin),
        "dur": _length(timeline, copy.begin, copy.end),
        "args": {
            "operand": lane.name,
            "block": None if copy.block is None else list(copy.block),
            "step": copy.step,
            "bytes": None if copy.size is None else round(copy.size),
            "bytes origin": "compiler",
            "started at cycle": copy.started, "cycles": copy.end - copy.begin,
            "duration origin": "assumed",
            "started by": _starter(copy, lane.kind, source),
        },
    }  # fmt: skip


def _starter(copy: TimelineCopy, kind: str, source: SourceLine | None) -> str:
    if source is not None:
        return f"{source} ({source.function})" if source.function else str(source)
    if copy.is_own:
        return "the kernel"
    return "XLA" if kind == "other" else "the pipeline"


def _thread_of(lane: int, direction: str) -> int:
    return 2 * lane + 1 + (direction == "out")


def _copy_name(copy: TimelineCopy, kind: str) -> str:
    if copy.is_own:
        return "copy by the kernel"
    if kind == "other":
        return "copy that XLA added"
    what = "fetch" if copy.direction == "in" else "write back"
    if copy.block is None:
        return f"{what} block of unknown index"
    return f"{what} block ({', '.join(map(str, copy.block))})"
