"""The pipeline over the first and last grid steps: a row for the core, and one for each operand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.timeline.strip import Span, StripGlyphs, facts, rows_of, title
from pallas_debug.profile.timeline.timeline import Timeline, timeline_of
from pallas_debug.report.markup import Markup, tag

STEPS = 24
"""Grid steps at the beginning of the timeline; half as many are shown at the end."""

WIDTH = 1200
"""Columns of a row; shorter spans are as wide as one, so that they are seen."""

GAP = 24
"""Columns between the first and the last steps."""

NARROW = 5
"""Columns up to which a span is drawn together with the next one."""

MAX_LABELS = 8
"""Maximum number of steps with a number."""

_KINDS = StripGlyphs(compute="compute", wait="wait", fetch="fetch", write="write", idle="", gap="")
_SHAPES = {"compute": (0, 12), "wait": (5, 4), "fetch": (0, 8), "write": (4, 8)}
"""Top and height of each kind of span, so that the colour is not the only difference."""

_LEGEND = {
    "compute": "compute",
    "wait": "wait for a copy",
    "fetch": "fetch",
    "write": "write back",
}


def timeline_part(profile: Profile, name: str) -> Markup:
    """What `pallas-debug timeline` shows, or why there is none."""
    try:
        made = timeline_of(profile, first=STEPS, last=STEPS // 2, name=name)
    except (CannotRunError, UsageError) as error:
        return tag("p", str(error), class_="pd-dim")
    scale = _Scale(made)
    rows: list[Markup] = [tag("span", "step"), tag("svg", _ruler(scale), class_="pd-ruler")]
    for row, spans in rows_of(made, _KINDS):
        paths = [
            tag("path", class_=f"pd-{kind}", d="".join(scale.drawn(spans, kind)))
            for kind in _SHAPES
        ]
        rows.append(tag("span", row))
        rows.append(
            tag(
                "svg",
                [path for path in paths if ' d=""' not in path],
                viewBox=f"0 0 {WIDTH} 12",
                preserveAspectRatio="none",
                aria_hidden="true",
            )
        )
    legend = [
        tag(
            "span",
            tag("svg", tag("path", class_=f"pd-{k}", d=_box(0, 12, k)), viewBox="0 0 12 12"),
            f" {text}",
        )
        for k, text in _LEGEND.items()
    ]
    notes = facts(made)
    return tag(
        "div",
        tag("p", title(made)),
        tag("div", rows, class_="pd-timeline", role="img", aria_label=f"Timeline: {notes[0]}"),
        tag("p", legend, class_="pd-timeline-legend", aria_hidden="true"),
        tag("ul", [tag("li", fact) for fact in notes], class_="pd-notes"),
    )


class _Scale:
    """Columns of the cycles of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.parts = timeline.parts
        total = sum(part.end - part.begin for part in self.parts) or 1
        self._each = (WIDTH - GAP * (len(self.parts) - 1)) / total
        self._left = []
        left = 0.0
        for part in self.parts:
            self._left.append(left)
            left += (part.end - part.begin) * self._each + GAP

    def column(self, part: int, cycle: float) -> float:
        """Column of a cycle; that of the part's end for a later one."""
        of = self.parts[part]
        return self._left[part] + (min(max(cycle, of.begin), of.end) - of.begin) * self._each

    def drawn(self, spans: Sequence[Sequence[Span]], kind: str) -> Iterator[str]:
        """Yield the path of the spans of a kind; narrow ones that touch are one."""
        for part, of_part in enumerate(spans):
            start = stop = -1.0
            for begin, end, what in sorted(of_part):
                if what != kind:
                    continue
                left, right = self.column(part, begin), self.column(part, end)
                if start >= 0 and (left > stop + 0.5 or stop - start > NARROW):
                    yield _box(start, stop, kind)
                    start = -1.0
                start = left if start < 0 else start
                stop = max(stop, right, start + 1)
            if start >= 0:
                yield _box(start, stop, kind)


def _box(left: float, right: float, kind: str) -> str:
    """Path of a span, with a column of space after a wide one."""
    top, height = _SHAPES[kind]
    width = right - left - (right - left > NARROW)
    return f"M{left:.0f} {top}h{max(width, 1):.0f}v{height}h-{max(width, 1):.0f}z"


def _ruler(scale: _Scale) -> Iterable[Markup]:
    """Where steps begin; some have their numbers."""
    steps = [(n, step) for n, part in enumerate(scale.parts) for step in part.steps]
    every = -(-len(steps) // MAX_LABELS)
    for at, (part, step) in enumerate(steps):
        x = f"{scale.column(part, step.begin) / WIDTH * 100:.2f}%"
        yield tag("line", x1=x, x2=x, y1="14", y2="18")
        if at % every == 0:
            yield tag("text", f"{step.step:,}", x=x, y="11")
