"""Lines in memory; a list with a note below it; columns."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.tui.widgets.cells import Cells, fitted
from pallas_debug.tui.widgets.frame import Frame
from pallas_debug.tui.widgets.lineview import LineView

_MIN_NAME = 12
"""Minimum number of cells for a name beside columns."""


class LineList(LineView):
    """View of lines in memory."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Cells] = ()

    @property
    def count(self) -> int:
        return len(self.lines)

    def cells(self, line: int) -> Cells:
        return self.lines[line]

    def show(self, lines: Sequence[Cells], cursor: int | None = None) -> None:
        self.lines = lines
        self.changed(keep=cursor)


class ListPane(LineView):
    """List whose frame shows a note and the position of the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._note = ""

    @property
    def note(self) -> str:
        """Text before the position in the frame, such as what is filtered."""
        return self._note

    @note.setter
    def note(self, text: str) -> None:
        self._note = text
        self._show_note()

    def changed(self, *, keep: int | None = None) -> None:
        super().changed(keep=keep)
        self._show_note()

    def _show_note(self) -> None:
        if isinstance(self.parent, Frame):
            at = f"{self.cursor + 1:,} of {self.count:,}" if self.count else ""
            self.parent.show_note("  ".join(filter(None, (self.note, at))))

    def watch_cursor(self, before: int, after: int) -> None:
        """Redraw only the two lines that the cursor left and entered, unless the list scrolls."""
        top = self.scroll_offset.y
        self._scroll_to_cursor()
        if self.scroll_offset.y == top:
            self.refresh_line(self.row_of(before))
            self.refresh_line(self.row_of(after))
        else:
            self.refresh()
        self._show_note()
        self.post_message(self.Moved(self))


def aligned(left: Cells, right: list[tuple[str, str]], width: int) -> Cells:
    """Align columns to the right edge; columns that do not fit are dropped from the end.

    Args:
      left: parts to the left of the columns; only the last part may be cut.
      right: text of each column, padded to its width, and its style.
    """
    *fixed, (text, style) = left
    room = width - sum(len(part) for part, _ in fixed)
    columns: list[tuple[str, str]] = []
    for column, kind in right:
        if room - len(column) - 1 < min(len(text), _MIN_NAME):
            break
        room -= len(column) + 1
        columns.append((f" {column}", kind))
    if not columns:
        return left
    return [*fixed, (fitted(text, room), style), *columns]
