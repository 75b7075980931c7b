"""A list with a line below it that says what is left out of it, and what is still being read."""

from __future__ import annotations

from typing import ClassVar

from textual.strip import Strip

from pallas_debug.tui.lineview import Cells, LineView


class ListPane(LineView):
    """A list that can be filtered.

    Subclasses keep `note` up to date; where it is empty the line is one of the list's.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"list--note"}
    DEFAULT_CSS = """
    ListPane {
        & .list--note { color: $text-warning; text-style: italic; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._note = ""

    @property
    def note(self) -> str:
        """What is said below the list."""
        return self._note

    @note.setter
    def note(self, text: str) -> None:
        if bool(text) != bool(self._note):
            self._note = text
            self.changed()
        elif text != self._note:
            self._note = text
            self.refresh()

    @property
    def room(self) -> int:
        return max(self.size.height - bool(self._note), 1)

    def _below(self) -> Strip:
        return self.strip([(self._note, "list--note")], self.rich_style)

    def watch_cursor(self, before: int = 0) -> None:
        """Draw the two lines that the cursor left and came to, unless the list scrolls."""
        top = self.scroll_offset.y
        self._follow()
        if self.scroll_offset.y == top and not self.wrap:
            self.refresh_line(self.row_of(before))
            self.refresh_line(self.row_of(self.cursor))
        else:
            self.refresh()
        self.post_message(self.Moved(self, self.cursor))

    # What keys do to every list.

    @property
    def filter_text(self) -> str:
        """What the list is filtered by, as it was typed."""
        return ""

    filter_hint: ClassVar[str] = "part of the name"

    def filter(self, text: str) -> None:
        """Show only what has this."""
        raise NotImplementedError

    def peel(self) -> bool:
        """Take the filter away; whether there was one."""
        if not self.filter_text:
            return False
        self.filter("")
        return True


def fitted(text: str, room: int) -> str:
    """A text in so many cells: cut with `…`, or filled up with blanks."""
    if len(text) > room:
        return text[: max(room - 1, 0)] + "…" * (room > 0)
    return text.ljust(room)


def aligned(left: Cells, right: list[tuple[str, str]], width: int) -> Cells:
    """Cells with columns at the right edge: as many of them, from the first, as fit.

    Args:
      left: all but its last part has a fixed size; the last is cut where it must be.
      right: each column's text as wide as the column, and its style.
    """
    *fixed, (text, style) = left
    room = width - sum(len(part) for part, _ in fixed)
    columns: list[tuple[str, str]] = []
    for column, kind in right:
        if room - len(column) - 1 < min(len(text), _LEAST):
            break
        room -= len(column) + 1
        columns.append((f" {column}", kind))
    if not columns:
        return left
    return [*fixed, (fitted(text, room), style), *columns]


_LEAST = 12
"""Cells that a name keeps, whatever else there is to say."""
