"""Titled, numbered border around a pane."""

from __future__ import annotations

from rich.cells import cell_len
from textual.containers import Vertical
from textual.widget import Widget

from pallas_debug.tui import _textual
from pallas_debug.tui.widgets.cells import visible

CUT = "…"

_EDGES = 6
"""Columns of the border beside its title: corners, and a line and a blank on both sides."""


class Frame(Vertical):
    """Border with a title above and a note below; bright while a pane in it has the focus.

    The border is not that of the pane, whose lines are then drawn without Textual's styles.
    """

    DEFAULT_CSS = """
    Frame {
        height: 1fr; border: round $border-blurred; border-title-color: $text-muted;
        border-subtitle-color: $text-muted;
        &:focus-within {
            border: round $text-primary; border-title-color: $text-primary;
            border-title-style: bold;
        }
        &:nocolor:focus-within { border: heavy $text-primary; }
        &.hidden { display: none; }
    }
    """

    def __init__(self, *panes: Widget, name: str, id: str | None = None) -> None:
        super().__init__(*panes, id=id)
        self.label = name
        """Number and name: the start of the title."""
        self.title = ""
        self.note = ""

    def on_mount(self) -> None:
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def show_title(self, title: str, label: str | None = None) -> None:
        """Show what is in the frame, most important part last."""
        if (title, label or self.label) != (self.title, self.label):
            self.title, self.label = title, label or self.label
            self._draw()

    def show_note(self, note: str) -> None:
        """Show a note below, most important part first."""
        if note != self.note:
            self.note = note
            self._draw()

    def _draw(self) -> None:
        room = max(self.size.width + 2 - _EDGES, 0)
        title = visible(self.label)
        if self.title:
            left = room - cell_len(title) - 3
            title += f" — {cut_left(visible(self.title), left)}" if left > 1 else ""
        note = visible(self.note)
        _textual.set_border_labels(self, title, note if cell_len(note) <= room else note[:room])


def frame_of(pane: Widget) -> Frame:
    """Return the frame around a pane."""
    frame = pane.parent
    assert isinstance(frame, Frame)
    return frame


def cut_left(text: str, room: int) -> str:
    """Return a text with its start cut so that it fits into a number of cells."""
    while cell_len(text) > room and len(text) > 1:
        text = CUT + text.removeprefix(CUT)[1:]
    return text
