"""The bar at the right edge of a view: which part of its rows is seen.

Drawn with the lines. Textual's own bars are widgets, for which the whole screen is laid out anew
when there is more or less to scroll through.
"""

from __future__ import annotations

THUMB, TRACK = "┃", " "


def thumb(rows: int, room: int, top: int) -> range:
    """The cells of a bar of `room` cells that stand for what is seen; none where all is.

    Args:
      rows: how many there are.
      top: the first that is seen.
    """
    if rows <= room:
        return range(0)
    size = max(room * room // rows, 1)
    last = rows - room
    start = round(min(top, last) / last * (room - size))
    if 0 < top < last:  # neither end is reached before it is
        start = min(max(start, 1), max(room - size - 1, 0))
    return range(start, start + size)


def top_at(rows: int, room: int, cell: int) -> int:
    """The first row that is seen when the bar is held at a cell."""
    return round(max(0, min(cell, room - 1)) / max(room - 1, 1) * max(rows - room, 0))
