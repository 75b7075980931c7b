"""Heat strip: how busy each unit is over the bundles of a kernel, as a picture without a script."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.profile.units import UnitTable
from pallas_debug.report import words
from pallas_debug.report.markup import Markup, tag

COLUMNS = 320
"""Maximum number of columns; each is the mean of several bundles."""

LEVELS = 5
_ROW, _WIDE = 12, 2


def heat_strip(units: UnitTable) -> Markup:
    """Bundles from left to right, units from top to bottom, darker where more is in use."""
    if not units.rows or not any(units.capacity):
        return Markup()
    columns = min(COLUMNS, len(units.rows))
    paths: list[list[str]] = [[] for _ in range(LEVELS + 1)]
    labels = []
    for at, name in enumerate(units.names):
        levels = _levels([row[at] for row in units.rows], units.capacity[at], columns)
        start = 0
        for column in range(1, columns + 1):
            if column == columns or levels[column] != levels[start]:
                level, width = levels[start], (column - start) * _WIDE
                if level:
                    paths[level].append(
                        f"M{start * _WIDE} {at * _ROW}h{width}v{_ROW - 2}h-{width}z"
                    )
                start = column
        labels.append(tag("text", name, x="-6", y=at * _ROW + 9, text_anchor="end"))
    shapes = [
        tag("path", d="".join(found), class_=f"pd-heat-{level}")
        for level, found in enumerate(paths)
        if found and level
    ]
    label = (
        f"Use of {len(units.names)} units over {words.number(len(units.rows))} bundles; the table "
        "of units has their shares"
    )
    height = len(units.names) * _ROW
    return tag(
        "figure",
        tag(
            "svg",
            labels,
            shapes,
            viewBox=f"-92 0 {columns * _WIDE + 92} {height}",
            class_="pd-heat",
            role="img",
            aria_label=label,
        ),
        tag("figcaption", "bundles, first to last; darker: more of the unit in use"),
        class_="pd-heat-figure",
    )


def _levels(counts: Sequence[int], capacity: int, columns: int) -> list[int]:
    """The mean use of each column, in steps; a unit in use is never shown as idle."""
    found = []
    for column in range(columns):
        first = column * len(counts) // columns
        last = max(first + 1, (column + 1) * len(counts) // columns)
        used = sum(counts[first:last])
        share = used / (capacity * (last - first)) if capacity else 0.0
        found.append(min(LEVELS, max(1, round(share * LEVELS))) if used else 0)
    return found
