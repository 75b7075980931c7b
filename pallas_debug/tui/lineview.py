"""A view that draws lines: of a list of kernels, of passes, of a text of any size.

Only the lines on the screen are asked for and rendered. Every pane is one of these, so that the
same keys move in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

Cells = list[tuple[str, str]]
"""A line: texts with the name of a component class each, `""` for plain text."""


class LineView(ScrollView, can_focus=True):
    """Lines with a cursor.

    Subclasses say how many lines there are and what is on each; text from files is cleaned of
    control characters here, once, for all of them.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("left,h", "pan(-8)", "left", show=False),
        Binding("right,l", "pan(8)", "right", show=False),
        Binding("space,pagedown", "page(1)", "next page", show=False),
        Binding("b,pageup", "page(-1)", "previous page", show=False),
        Binding("ctrl+d", "page(0.5)", "half a page down", show=False),
        Binding("ctrl+u", "page(-0.5)", "half a page up", show=False),
        Binding("g,home", "go(0)", "top", show=False),
        Binding("G,end", "go(-1)", "bottom", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lineview--cursor"}

    DEFAULT_CSS = """
    LineView {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        & .lineview--cursor { background: $surface-lighten-1; }
        &:focus .lineview--cursor { background: $primary-muted; text-style: bold; }
    }
    """

    cursor: reactive[int] = reactive(0)

    class Moved(Message):
        """The cursor stands on another line."""

        def __init__(self, view: LineView, line: int) -> None:
            self.view = view
            self.line = line
            super().__init__()

        @property
        def control(self) -> LineView:
            return self.view

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 0

    def cells(self, line: int) -> Cells:
        """What stands on a line."""
        raise NotImplementedError

    def changed(self, *, keep: int | None = None) -> None:
        """There is something else to show.

        Args:
          keep: the line for the cursor; as near as can be to where it was unless told.
        """
        self.virtual_size = Size(self.size.width, self.count)
        wanted = self.cursor if keep is None else keep
        self.set_reactive(LineView.cursor, max(0, min(wanted, self.count - 1)))
        self._follow()
        self.refresh()

    def watch_cursor(self) -> None:
        self._follow()
        self.refresh()
        self.post_message(self.Moved(self, self.cursor))

    def validate_cursor(self, line: int) -> int:
        return max(0, min(line, self.count - 1))

    def _follow(self) -> None:
        """Scroll so that the cursor is seen."""
        region = Region(self.scroll_offset.x, self.cursor, 1, 1)
        self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        line = y + self.scroll_offset.y
        width = self.size.width
        base = self.rich_style
        if line >= self.count:
            return Strip.blank(width, base)
        if line == self.cursor:
            base += self.get_component_rich_style("lineview--cursor", partial=True)
        segments = [
            Segment(visible(text), base + self._style(name)) for text, name in self.cells(line)
        ]
        strip = Strip(segments)
        x = self.scroll_offset.x
        return strip.crop(x, x + width).extend_cell_length(width, base)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True) if name else Style.null()

    def action_move(self, lines: int) -> None:
        self.cursor += lines

    def action_page(self, pages: float) -> None:
        self.cursor += int(pages * max(self.size.height - 1, 1))

    def action_go(self, line: int) -> None:
        self.cursor = self.count - 1 if line < 0 else line

    def action_pan(self, columns: int) -> None:
        self.scroll_to(x=max(self.scroll_offset.x + columns, 0), animate=False)

    def on_click(self, event: events.Click) -> None:
        self.cursor = event.y + self.scroll_offset.y

    def on_resize(self) -> None:
        self.changed()


_CONTROL = {i: 0x2400 + i for i in range(32)} | {0x7F: 0x2421}
_CONTROL |= dict.fromkeys((*range(128, 160), 8206, 8207, *range(8234, 8239)), 65533)
"""Control characters as the pictures that Unicode has of them: shown, never obeyed. Those that
turn the direction of writing around have none."""


def visible(text: str) -> str:
    """A text that no terminal obeys."""
    return text.replace("\t", "    ").translate(_CONTROL)


def plain(cells: Iterable[tuple[str, str]]) -> str:
    """What a line says, without how it looks."""
    return "".join(text for text, _ in cells)
