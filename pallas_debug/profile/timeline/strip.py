"""Rendering of a timeline as a strip in the terminal: one row for the core, one per operand."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pallas_debug.profile.figures import Figure
from pallas_debug.profile.timeline.parts import TimelinePart
from pallas_debug.profile.timeline.timeline import Timeline
from pallas_debug.quantities import percent
from pallas_debug.render import one_line

MIN_WIDTH = 40
"""Minimum width of a strip in columns."""

MAX_NAME = 24
"""Maximum columns of an operand's name."""

_COLUMNS_PER_STEP = 8


@dataclass(frozen=True, kw_only=True)
class StripGlyphs:
    """Characters to draw a strip with."""

    compute: str
    wait: str
    fetch: str
    write: str
    idle: str
    gap: str


GLYPHS = StripGlyphs(compute="█", wait="░", fetch="▼", write="▲", idle="·", gap="┊")

Span = tuple[float, float, str]
"""Beginning and end in cycles, and a glyph; if spans share a column equally, the first wins."""


def steps_that_fit(width: int) -> int:
    """Return how many steps a strip of this width can show in detail."""
    return max(2, (max(width, MIN_WIDTH) - MAX_NAME) // _COLUMNS_PER_STEP)


def strip(timeline: Timeline, width: int) -> list[str]:
    """Draw a timeline in a number of columns."""
    names = ["step", "compute", *(_name(lane.name) for lane in timeline.lanes)]
    margin = max(map(columns, names)) + 2
    room = max(width, MIN_WIDTH) - margin - 2 * (len(timeline.parts) - 1)
    widths = _widths(timeline.parts, room)
    gap = f"{GLYPHS.gap} "
    rows = [
        (f"{'step':<{margin}}", [_ruler(p, w) for p, w in zip(timeline.parts, widths, strict=True)])
    ]
    for name, spans in rows_of(timeline, GLYPHS):
        cells = [
            _cells(part, spans_of, room_of, GLYPHS.idle)
            for part, spans_of, room_of in zip(timeline.parts, spans, widths, strict=True)
        ]
        rows.append((name + " " * (margin - columns(name)), cells))
    lines = [head + gap.join(cells) for head, cells in rows]
    drawn = ["", *(line.rstrip() for line in lines), "", _legend()]
    text = [*_wrapped(title(timeline), width), *drawn]
    text += [line for fact in facts(timeline) for line in _wrapped(fact, width)]
    return [one_line(line) for line in text]


def facts(timeline: Timeline) -> list[str]:
    """Return what is below a timeline: its copies, steps and assumptions."""
    compute = timeline.compute
    steps = f"compute: {compute} cycles per step ({compute.origin}: {compute.note})"
    return [_copies(timeline), steps, *_notes(timeline)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        one_line(text), max(width, MIN_WIDTH), subsequent_indent="  ", break_on_hyphens=False
    )


def columns(text: str) -> int:
    """Return the width of a text in terminal columns."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)


def _name(name: str) -> str:
    shown = one_line(name)
    return shown if len(shown) <= MAX_NAME else f"{shown[: MAX_NAME - 1]}…"


def _widths(parts: Sequence[TimelinePart], room: int) -> list[int]:
    """Divide the columns among the parts, in proportion to their cycles."""
    total = sum(part.end - part.begin for part in parts)
    if not total:
        return [room // len(parts)] * len(parts)
    found = [max(2, math.floor(room * (p.end - p.begin) / total)) for p in parts]
    found[0] += room - sum(found)
    return found


def rows_of(timeline: Timeline, glyphs: StripGlyphs) -> Iterable[tuple[str, list[list[Span]]]]:
    """Yield the name of each row, and its spans in every part."""
    core = [
        [
            *((begin, end, glyphs.compute) for _, begin, end in part.computing()),
            *((w.begin, w.end, glyphs.wait) for w in part.waits),
        ]
        for part in timeline.parts
    ]
    yield "compute", core
    for number, lane in enumerate(timeline.lanes):
        yield (
            _name(lane.name),
            [
                [
                    (c.begin, c.end, glyphs.fetch if c.direction == "in" else glyphs.write)
                    for c in part.copies
                    if c.lane == number
                ]
                for part in timeline.parts
            ],
        )


def _cells(part: TimelinePart, spans: list[Span], width: int, idle: str) -> str:
    """Render a row with one character per column: the glyph that fills most of it."""
    if part.end <= part.begin:
        return idle * width
    scale = width / (part.end - part.begin)
    filled: list[dict[str, float]] = [{} for _ in range(width)]
    for begin, end, glyph in spans:
        low, high = (begin - part.begin) * scale, (end - part.begin) * scale
        for column in range(max(int(low), 0), min(math.ceil(high), width)):
            share = min(high, column + 1) - max(low, column)
            filled[column][glyph] = filled[column].get(glyph, 0.0) + share
    # Show even copies that are much shorter than a column: users look for them.
    return "".join(max(found, key=found.__getitem__) if found else idle for found in filled)


def _ruler(part: TimelinePart, width: int) -> str:
    """Render step numbers where steps begin to compute, as far as there is room."""
    cells = [" "] * width
    free = 0
    span = part.end - part.begin
    seen: set[int] = set()
    for number, begin, _ in part.computing():
        if number in seen:
            continue
        seen.add(number)
        label = str(number)
        at = int((begin - part.begin) / span * width) if span else 0
        if at >= free and at + len(label) <= width:
            cells[at : at + len(label)] = label
            free = at + len(label) + 1
    return "".join(cells)


def title(timeline: Timeline) -> str:
    """Return a sentence about the whole run."""
    grid = " × ".join(map(str, timeline.grid)) or "none"
    steps = f"{timeline.steps:,} step{'s' if timeline.steps != 1 else ''}"
    return (
        f"{timeline.kernel} on {timeline.target}: grid {grid}, {steps}, "
        f"{_cycles(timeline, timeline.cycles)}, stalled {_percent(timeline.stalled)}"
    )


def _cycles(timeline: Timeline, figure: Figure) -> str:
    if figure.value is None:
        return "- cycles"
    time = timeline.microseconds(float(figure.value))
    return f"{round(figure.value):,} cycles ({time:,.1f} µs)"


def _percent(figure: Figure) -> str:
    return "-" if figure.value is None else percent(figure.value)


def _legend() -> str:
    return (
        f"{GLYPHS.compute} compute   {GLYPHS.wait} wait for a copy   {GLYPHS.fetch} fetch   "
        f"{GLYPHS.write} write back   {GLYPHS.idle} idle"
    )


def _copies(timeline: Timeline) -> str:
    counts = []
    for lane in timeline.lanes:
        if not lane.copies.is_known or lane.copies.value:
            of = f" of {lane.size} bytes" if lane.size.is_known else ""
            counts.append(f"{_name(lane.name)} {lane.copies}{of}")
    return f"copies: {', '.join(counts) or 'none'}"


def _notes(timeline: Timeline) -> list[str]:
    """Return notes on operands, grouped by note, and on the whole timeline."""
    of_lanes: dict[str, list[str]] = {}
    for lane in timeline.lanes:
        if lane.note:
            of_lanes.setdefault(lane.note, []).append(_name(lane.name))
    found = [f"{', '.join(names)}: {note}" for note, names in of_lanes.items()]
    return [f"note: {note}" for note in (*found, *timeline.notes)]
