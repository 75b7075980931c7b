"""A view that draws lines: of a list of kernels, of passes, of a text of any size.

Only the lines on the screen are asked for and rendered. Every pane is one of these, so that the
same keys move in all of them. Lines stand in rows: one each, none where a line is folded away,
several where long ones wrap. A line that does not wrap goes on to the right, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
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

from pallas_debug.tui.cells import Cells as Cells
from pallas_debug.tui.cells import cuts, without_tabs
from pallas_debug.tui.cells import plain as plain
from pallas_debug.tui.cells import visible as visible

GOES_ON, CAME_FROM, WRAPPED = "›", "‹", "↪"
"""Marks where a line goes on to the right, to the left, and in the next row."""


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

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lineview--cursor", "lineview--more"}

    DEFAULT_CSS = """
    LineView {
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        & .lineview--cursor { background: $surface-lighten-1; }
        & .lineview--more { color: $text-warning; text-style: bold; }
        &:focus .lineview--cursor { background: $primary-muted; text-style: bold; }
        &:nocolor .lineview--cursor { text-style: underline; }
        &:nocolor:focus .lineview--cursor { text-style: bold reverse; }
    }
    """

    cursor: reactive[int] = reactive(0)
    panned: reactive[int] = reactive(0)
    """Cells of each line that are left out on the left."""
    wrap: reactive[bool] = reactive(False)
    """Whether long lines go on in further rows."""

    class Moved(Message):
        """The cursor stands on another line."""

        def __init__(self, view: LineView, line: int) -> None:
            self.view = view
            self.line = line
            super().__init__()

        @property
        def control(self) -> LineView:
            return self.view

    # What subclasses say.

    @property
    def count(self) -> int:
        """How many lines there are."""
        return 0

    def cells(self, line: int) -> Cells:
        """What stands on a line."""
        raise NotImplementedError

    def gutter(self, line: int) -> Cells:
        """What stands before a line, and stays where it is when the line is panned."""
        return []

    def left_out(self, line: int) -> int:
        """Cells at the beginning of a line that `cells` does not give, as they are not seen."""
        return 0

    @property
    def rows(self) -> int:
        """How many lines are not folded away."""
        return self.count

    def row_of(self, line: int) -> int:
        """Where a line stands among those that are not folded away."""
        return line

    def line_of(self, row: int) -> int:
        """The line that stands there."""
        return row

    # Where the cursor is, and what is seen.

    @property
    def room(self) -> int:
        """Rows of the screen that lines are drawn on."""
        return max(self.size.height, 1)

    def changed(self, *, keep: int | None = None) -> None:
        """There is something else to show.

        Args:
          keep: the line for the cursor; as near as can be to where it was unless told.
        """
        # Wrapped, the last line too can be the first one on the screen.
        below = self.room - 1 if self.wrap else self.size.height - self.room
        self.virtual_size = Size(self.size.width, self.rows + below)
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

    def validate_panned(self, cells: int) -> int:
        return max(cells, 0)

    def watch_wrap(self) -> None:
        self.changed()

    def _follow(self) -> None:
        """Scroll so that the cursor is seen."""
        row, top = self.row_of(self.cursor), self.scroll_offset.y
        if row < top:
            wanted = row
        elif not self.wrap:
            wanted = max(top, row - self.room + 1)
        elif row - top >= self.room:
            wanted = max(row - self.room + 1, self._highest(row, row - self.room + 1))
        else:
            wanted = max(top, self._highest(row, top))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)

    def _highest(self, row: int, lowest: int) -> int:
        """The first row from which on the screen holds all of the wrapped lines to `row`."""
        left = self.room
        at = row
        while at >= lowest and at >= 0:
            left -= len(self._strips(self.line_of(at)))
            if left < 0:
                break
            at -= 1
        return min(at + 1, row)

    def line_at(self, y: int) -> int | None:
        """The line that is drawn on a row of the screen."""
        if not self.wrap:
            row = y + self.scroll_offset.y
            return self.line_of(row) if 0 <= row < self.rows else None
        for at, (line, _) in enumerate(self._wrapped()):
            if at == y:
                return line
        return None

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        self._screen = [strip for _, strip in self._wrapped()] if self.wrap else []
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= self.room:
            return self._below().crop(0, width).extend_cell_length(width, self.rich_style)
        if self.wrap:
            known = y < len(self._screen)
            return self._screen[y] if known else Strip.blank(width, self.rich_style)
        row = y + self.scroll_offset.y
        if row >= self.rows:
            return Strip.blank(width, self.rich_style)
        return self._strips(self.line_of(row))[0]

    def _below(self) -> Strip:
        """What stands on the rows of the screen that are kept from the lines."""
        return Strip.blank(self.size.width, self.rich_style)

    def _wrapped(self) -> Iterator[tuple[int, Strip]]:
        """The rows of the screen, each with its line."""
        left = self.room
        for row in range(self.scroll_offset.y, self.rows):
            line = self.line_of(row)
            for strip in self._strips(line)[:left]:
                yield line, strip
                left -= 1
            if left <= 0:
                return

    def _strips(self, line: int) -> list[Strip]:
        """A line as rows of the screen: one, or as many as it wraps to."""
        base = self.rich_style
        if line == self.cursor:
            base += self.get_component_rich_style("lineview--cursor", partial=True)
        gutter = self.strip(self.gutter(line), base)
        body = self.strip(without_tabs(self.cells(line)), base)
        room = max(self.size.width - gutter.cell_length, 1)
        parts = self._rows(body, room, base) if self.wrap else [self._panned(line, body, room, base)]
        ahead = [gutter, *[self._continued(gutter, base)] * (len(parts) - 1)]
        width = self.size.width
        return [
            Strip.join([before, part]).crop(0, width).extend_cell_length(width, base)
            for before, part in zip(ahead, parts, strict=True)
        ]

    def strip(self, parts: Cells, base: Style) -> Strip:
        """Parts of a line as they are drawn."""
        return Strip([Segment(visible(text), base + self._style(name)) for text, name in parts])

    def _rows(self, body: Strip, room: int, base: Style) -> list[Strip]:
        """A long line over several rows, as many as the screen has; the last says if it is cut."""
        if body.cell_length <= room:
            return [body]
        rows = list(body.divide(cuts(body.text, room)))
        if len(rows) > self.room:
            rest = sum(row.cell_length for row in rows[self.room - 1 :])
            said = self.strip([(f"… {rest:,} more cells", "lineview--more")], base)
            rows = [*rows[: self.room - 1], said]
        return rows

    def _panned(self, line: int, body: Strip, room: int, base: Style) -> Strip:
        """The part of a line that is seen, with marks where it goes on."""
        start = self.panned - self.left_out(line)
        shown = body.crop(start, start + room)
        more = base + self._style("lineview--more")
        if body.cell_length > start + room:
            shown = Strip.join([shown.crop(0, room - 1), Strip([Segment(GOES_ON, more)])])
        if self.panned and (body.cell_length or self.left_out(line)):
            shown = Strip.join([Strip([Segment(CAME_FROM, more)]), shown.crop(1)])
        return shown

    def _continued(self, gutter: Strip, base: Style) -> Strip:
        """The gutter of a row that is not a line's first."""
        width = gutter.cell_length
        more = base + self._style("lineview--more")
        return Strip([Segment(WRAPPED.rjust(width)[:width], more)]) if width else Strip([])

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name, partial=True) if name else Style.null()

    # What the keys do.

    def action_move(self, lines: int) -> None:
        if self.rows:
            row = self.row_of(self.cursor) + lines
            self.cursor = self.line_of(max(0, min(row, self.rows - 1)))

    def action_page(self, pages: float) -> None:
        self.action_move(int(pages * max(self.room - 1, 1)))

    def action_go(self, line: int) -> None:
        if self.count:
            self.cursor = self.line_of(self.rows - 1) if line < 0 else line

    def action_pan(self, columns: int) -> None:
        """Show what stands further right, or left. There is nothing to pan in wrapped lines."""
        if not self.wrap:
            self.panned = min(self.panned + columns, max(self.widest() - 1, 0))

    def widest(self) -> int:
        """Cells of the longest line on the screen."""
        first = self.scroll_offset.y
        shown = range(first, min(first + self.room, self.rows))
        return max((self._length(self.line_of(row)) for row in shown), default=0)

    def _length(self, line: int) -> int:
        return self.left_out(line) + self.strip(self.cells(line), Style.null()).cell_length

    def on_click(self, event: events.Click) -> None:
        line = self.line_at(event.y)
        if line is not None:
            self.cursor = line

    def on_resize(self) -> None:
        self.changed()
