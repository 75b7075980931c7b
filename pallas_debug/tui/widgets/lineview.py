"""Scrollable view of lines with a cursor: the base of every pane and list.

Only the lines on the screen are rendered. A line takes one row, none while it is hidden, or several
with notes below it. Lines can be panned; marks show where they continue.
The scroll bar is part of the rows, as Textual lays out the whole screen whenever one of its own
scroll bars appears or disappears.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events, getters
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pallas_debug.tui import _textual
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import Cells, between, cells, visible, without_tabs

GOES_ON, CAME_FROM = "›", "‹"
"""Marks of a line that continues to the right, and to the left."""

THUMB, TRACK = "┃", " "

MORE = "bold text-warning"
"""Style of marks of a line that continues."""

_CACHED = 256
"""Maximum number of rendered lines to cache: a few screenfuls."""


class ViewMessage(Message):
    """Message about a view, which `@on` can select."""

    def __init__(self, view: LineView) -> None:
        self.view = view
        super().__init__()

    @property
    def control(self) -> LineView:
        return self.view


def bar_thumb(rows: int, room: int, top: int) -> range:
    """Return the cells of the scroll bar's thumb; none if all rows are visible.

    Args:
      rows: number of rows in total.
      room: number of visible rows.
      top: first visible row.
    """
    if rows <= room:
        return range(0)
    size = max(room * room // rows, 1)
    last = rows - room
    start = round(min(top, last) / last * (room - size))
    if 0 < top < last:  # the thumb touches an end only if the view is at that end
        start = min(max(start, 1), max(room - size - 1, 0))
    return range(start, start + size)


class LineView(ScrollView, can_focus=True, inherit_bindings=False):
    """Scrollable view of lines with a cursor.

    Subclasses provide `count` and `cells`, and may hide lines by `rows`, `row_of` and `line_of`.
    Control characters in their texts are sanitised here.
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

    DEFAULT_CSS = "LineView { height: 1fr; overflow: hidden hidden; }"

    app = getters.app(ThemedApp)

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)  # see `set_virtual_size`
    cursor: reactive[int] = reactive(0, repaint=False)  # its watcher refreshes what changes
    panned: reactive[int] = reactive(0)
    """Number of cells scrolled off to the left."""

    class Moved(ViewMessage):
        """Message: the cursor moved to another line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        _textual.draw_unstyled(self)
        self._frame: _Frame | None = None
        # A strip caches what Textual renders from it, so redrawing the same strip is much cheaper.
        self._drawn: LRUCache[tuple[object, ...], Strip] = LRUCache(_CACHED)
        self._edged: LRUCache[tuple[int, Segment], tuple[Strip, Strip]] = LRUCache(_CACHED)
        self._is_drawing = False

    # For subclasses.

    @property
    def count(self) -> int:
        """Number of lines."""
        return 0

    def cells(self, line: int) -> Cells:
        """Return the parts of a line."""
        raise NotImplementedError

    def prefix(self, line: int) -> Cells:
        """Return the prefix of a line, which stays in place when the line is panned."""
        return []

    def below(self, line: int) -> Sequence[Cells]:
        """Return rows that are drawn below a line, and not panned.

        `rows`, `row_of` and `line_of` must count them.
        """
        return ()

    @property
    def rows(self) -> int:
        """Number of rows of the lines that are not hidden."""
        return self.count

    def row_of(self, line: int) -> int:
        """Return the row of a line."""
        return line

    def line_of(self, row: int) -> int:
        """Return the line in a row."""
        return row

    @property
    def is_active(self) -> bool:
        """True if keys move the cursor."""
        return self.has_focus

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.refresh()  # the cursor and the scroll bar

    # Size, cursor and scrolling.

    @property
    def room(self) -> int:
        """Number of screen rows for lines."""
        return self._frame.room if self._frame else max(self.size.height, 1)

    @property
    def frozen(self) -> int:
        """Number of first rows that stay in place."""
        return 0

    @property
    def columns(self) -> int:
        """Number of cells in a row, without the scroll bar."""
        return self._frame.columns if self._frame else max(self.size.width - 1, 0)

    @property
    def allow_vertical_scroll(self) -> bool:
        return True  # by the mouse wheel; our scroll bar is not Textual's

    @property
    def base(self) -> Style:
        """Style of plain text."""
        return self._frame.base if self._frame else self.rich_style

    def changed(self, *, keep: int | None = None) -> None:
        """Show changed lines.

        Args:
          keep: line for the cursor; by default its current line.
        """
        self._fit_lines(keep)
        self.refresh()

    def _fit_lines(self, keep: int | None = None) -> None:
        _textual.set_virtual_size(self, Size(self.columns, self.rows))
        wanted = self.validate_cursor(self.cursor if keep is None else keep)
        if self.rows:
            wanted = self.line_of(self.row_of(wanted))  # which is not hidden
        self.set_reactive(LineView.cursor, wanted)
        self._scroll_to_cursor()

    def watch_cursor(self, before: int, after: int) -> None:
        # Textual passes the old value only to a watcher with two parameters.
        self._scroll_to_cursor()
        self.refresh()
        self.post_message(self.Moved(self))

    def validate_cursor(self, line: int) -> int:
        return max(0, min(line, self.count - 1))

    def validate_panned(self, cells: int) -> int:
        return max(cells, 0)

    def _scroll_to_cursor(self) -> None:
        if not (self.count and self.size.height):
            return
        row, top = self.row_of(self.cursor), self.scroll_offset.y
        if row < self.frozen:
            return
        if row < top + self.frozen:
            wanted = row - self.frozen
        else:
            last = row + len(self.below(self.cursor))
            wanted = max(top, min(row, last - self.room + 1))
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, force=True)

    def line_at(self, y: int) -> int | None:
        """Return the line that is drawn in a row of the screen."""
        row = y + self.scroll_offset.y * (y >= self.frozen)
        return self.line_of(row) if 0 <= row < self.rows else None

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        self._is_drawing = True
        try:
            return super().render_lines(crop)
        finally:
            self._is_drawing, self._frame = False, None

    @property
    def _now(self) -> _Frame:
        """Current frame, cached while the lines of one screen are drawn."""
        now = self._frame or _Frame(self)
        if self._is_drawing:
            self._frame = now
        return now

    def render_line(self, y: int) -> Strip:
        now = self._now
        row = y + now.top * (y >= now.frozen)
        strip = now.blank if row >= now.rows else self._strip_in(row)
        edge = now.bar if y in now.thumb else now.no_bar
        key = id(strip), edge  # the entry keeps the strip alive, so its ID is not reused
        found = self._edged.get(key)
        if found is None:
            found = self._edged[key] = strip, Strip([*strip, edge])
        return found[1]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()

    def _strip_in(self, row: int) -> Strip:
        """Render a row: a line, or one below it."""
        line = self.line_of(row)
        if below := row - self.row_of(line):
            return self.column(self.below(line)[below - 1], [], self.base)
        return self.strip_of(line)

    def strip_of(self, line: int) -> Strip:
        """Render a line."""
        return self.column(self.prefix(line), self.cells(line), self.base_of(line))

    def base_of(self, line: int) -> Style:
        """Return the style of plain text on a line."""
        now = self._now
        return now.of_cursor if line == now.cursor else now.base

    def column(self, before: Cells, parts: Cells, base: Style) -> Strip:
        """Render the visible part of a line: strips are expensive.

        Args:
          before: prefix that is not panned.
        """
        now = self._now
        key = (*before, None, *parts, base, now.panned, now.columns)
        found = self._drawn.get(key)
        if found is None:
            found = self._drawn[key] = self._panned_line(before, without_tabs(parts), base)
        return found

    def _panned_line(self, before: Cells, parts: Cells, base: Style) -> Strip:
        start, width = self._now.panned, self._now.columns
        room = max(width - sum(cells(text) for text, _ in before), 1)
        length = sum(cells(text) for text, _ in parts)
        shown = between(parts, start, start + room) if start or length > room else parts
        if length > start + room:
            shown = [*between(shown, 0, room - 1), (GOES_ON, MORE)]
        if start and parts:
            shown = [(CAME_FROM, MORE), *between(shown, 1, room)]
        row = self.strip([*before, *shown], base)
        return row.crop(0, width).extend_cell_length(width, base)

    def strip(self, parts: Cells, base: Style) -> Strip:
        """Render parts of a line."""
        look = self._now.look
        return Strip([Segment(visible(text), look(base, name)) for text, name in parts])

    # Keys.

    def action_move(self, lines: int) -> None:
        if self.rows:
            row = self.row_of(self.cursor) + lines
            if lines > 0:
                row += len(self.below(self.cursor))
            self.cursor = self.line_of(max(0, min(row, self.rows - 1)))

    def action_page(self, pages: float) -> None:
        self.action_move(int(pages * max(self.room - 1, 1)))

    def action_go(self, row: int) -> None:
        """Move the cursor to the first row, or for -1 to the last one."""
        if self.rows:
            self.cursor = self.line_of(row % self.rows)

    def action_pan(self, columns: int) -> None:
        """Scroll lines sideways."""
        self.panned = min(self.panned + columns, max(self.widest() - 1, 0))

    def widest(self) -> int:
        """Return the width of the longest line on the screen."""
        first = self.scroll_offset.y
        lines = map(self.line_of, range(first, min(first + self.room, self.rows)))
        widths = (self.strip(self.cells(n), Style.null()).cell_length for n in lines)
        return max(widths, default=0)

    # Mouse and size.

    def on_click(self, event: events.Click) -> None:
        x, y = event.offset - self.gutter.top_left
        line = self.line_at(y)
        if line is not None and x < self.columns:
            self.cursor = line

    def on_resize(self) -> None:
        self._fit_lines()  # Textual redraws the view anyway


class _Frame:
    """State shared by all lines of one screen, most of which Textual would recompute."""

    def __init__(self, view: LineView) -> None:
        self._view = view
        self._looks: dict[tuple[Style, str], Style] = {}
        self.base = base = view.rich_style
        self.columns = view.columns
        self.room, self.rows, self.top = view.room, view.rows, view.scroll_offset.y
        self.frozen = view.frozen
        self.panned = view.panned
        self.cursor = view.cursor
        active, named = view.is_active, view.app.style_named
        self.of_cursor = base + named("cursor of focus" if active else "cursor")
        self.blank = Strip.blank(self.columns, base)
        self.thumb = bar_thumb(self.rows, self.room, self.top)
        self.bar = Segment(THUMB, base + named("text-primary" if active else "border-blurred"))
        self.no_bar = Segment(TRACK, base)

    def look(self, base: Style, name: str) -> Style:
        """Return the style of part of a line."""
        found = self._looks.get((base, name))
        if found is None:
            found = self._looks[base, name] = base + self._view.app.style_named(name)
        return found
