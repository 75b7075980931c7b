"""A view that draws lines: of a list of kernels, of passes, of a text of any size.

Only the lines on the screen are asked for and rendered. Every pane is one of these, so that the
same keys move in all of them. Lines stand in rows: one each, none where a line is folded away,
several where long ones wrap. A line that does not wrap goes on to the right, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.worker import Worker

from pallas_debug.tui import _textual, bar
from pallas_debug.tui.cells import Cells as Cells
from pallas_debug.tui.cells import between, cuts, without_tabs
from pallas_debug.tui.cells import plain as plain
from pallas_debug.tui.cells import visible as visible

GOES_ON, CAME_FROM, WRAPPED = "›", "‹", "↪"
"""Marks where a line goes on to the right, to the left, and in the next row."""

_TURNS = 12

_KEPT = 256
"""Lines that are kept as they were drawn: some screens full."""


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

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "lineview--bar",
        "lineview--cursor",
        "lineview--more",
        "lineview--selected",
    }

    DEFAULT_CSS = """
    LineView {
        overflow: hidden hidden;
        & .lineview--bar { color: $surface-lighten-3; }
        &:focus .lineview--bar { color: $primary; }
        & .lineview--cursor { background: $surface-lighten-1; }
        & .lineview--selected { background: $secondary-muted; }
        & .lineview--more { color: $text-warning; text-style: bold; }
        &:focus .lineview--cursor { background: $primary-muted; text-style: bold; }
        &:nocolor .lineview--selected { text-style: reverse; }
        &:nocolor .lineview--cursor { text-style: underline; }
        &:nocolor:focus .lineview--cursor { text-style: bold reverse; }
    }
    """

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)  # see `changed`
    cursor: reactive[int] = reactive(0, repaint=False)  # its watcher draws what changes
    panned: reactive[int] = reactive(0)
    """Cells of each line that are left out on the left."""
    wrap: reactive[bool] = reactive(False)
    """Whether long lines go on in further rows."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        _textual.draw_as_given(self)
        self._screen: list[Strip] = []
        self._drawing: _Drawing | None = None
        # Textual keeps with each strip what it makes of it: what is drawn again is drawn for less.
        self._drawn: LRUCache[tuple[object, ...], list[Strip]] = LRUCache(_KEPT)
        self._edged: LRUCache[tuple[int, Segment], tuple[Strip, Strip]] = LRUCache(_KEPT)
        self._is_drawn = self._is_dragged = False

    selected_from: reactive[int | None] = reactive(None)
    """The line from which lines are selected."""

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

    def prefix(self, line: int) -> Cells:
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
        return self._drawing.room if self._drawing else max(self.size.height, 1)

    @property
    def columns(self) -> int:
        """Cells of a row of the screen, without that of the bar."""
        return self._drawing.columns if self._drawing else max(self.size.width - 1, 0)

    @property
    def allow_vertical_scroll(self) -> bool:
        return True  # the bar is no widget of Textual's

    @property
    def base(self) -> Style:
        """How plain text looks."""
        return self.rich_style if self._drawing is None else self._drawing.base

    def changed(self, *, keep: int | None = None) -> None:
        """There is something else to show.

        Args:
          keep: the line for the cursor; as near as can be to where it was unless told.
        """
        self._fit_lines(keep)
        self.refresh()

    def _fit_lines(self, keep: int | None = None) -> None:
        """Take over how many lines there are, and how many are seen."""
        # Wrapped, the last line too can be the first one on the screen.
        below = self.room - 1 if self.wrap else self.size.height - self.room
        _textual.set_virtual_size(self, Size(self.columns, self.rows + below))
        wanted = self.cursor if keep is None else keep
        self.set_reactive(LineView.cursor, max(0, min(wanted, self.count - 1)))
        self._follow()

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
        if not self.count:
            return
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

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]], group: str) -> Worker[None]:
        """Start work beside the drawing. Another one of the same group ends it."""
        worker: Worker[None] = self.run_worker(work, group=group, exclusive=True)
        return worker

    @staticmethod
    async def breathe() -> None:
        """Let the screen do what it has to: a key takes some turns until it is seen."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    # Drawing.

    def render_lines(self, crop: Region) -> list[Strip]:
        self._is_drawn = True
        try:
            self._screen = [strip for _, strip in self._wrapped()] if self.wrap else []
            return super().render_lines(crop)
        finally:
            self._is_drawn, self._drawing = False, None

    @property
    def _now(self) -> _Drawing:
        """How things are: kept as long as the lines of one screen are drawn."""
        now = self._drawing or _Drawing(self)
        if self._is_drawn:
            self._drawing = now
        return now

    def render_line(self, y: int) -> Strip:
        now = self._now
        strip = self._without_bar(y, now)
        at_bar = y < now.room and bool(now.thumb)
        return self._with_edge(strip, now.bar if at_bar and y in now.thumb else now.no_bar)

    def _with_edge(self, strip: Strip, edge: Segment) -> Strip:
        key = id(strip), edge  # it is kept below, so that nothing else comes to have its number
        found = self._edged.get(key)
        if found is None:
            found = self._edged[key] = strip, Strip([*strip, edge])
        return found[1]

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._drawn.clear()

    def _without_bar(self, y: int, now: _Drawing) -> Strip:
        if y >= now.room:
            return self._below().crop(0, now.columns).extend_cell_length(now.columns, now.base)
        if now.wrap:
            return self._screen[y] if y < len(self._screen) else now.blank
        row = y + now.top
        return now.blank if row >= now.rows else self._strips(self.line_of(row))[0]

    def _below(self) -> Strip:
        """What stands on the rows of the screen that are kept from the lines."""
        return Strip.blank(self.columns, self.base)

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
        base = self.base_of(line)
        before, body = self.prefix(line), self.cells(line)
        return self.column(before, body, self.columns, base, self.left_out(line))

    def base_of(self, line: int) -> Style:
        """How plain text looks on a line: another way on that of the cursor."""
        now = self._now
        if line == now.cursor:
            return now.of_cursor
        return now.of_selected if line in now.selected else now.base

    @property
    def selected(self) -> range:
        """The lines from the anchor to the cursor; none where there is no anchor."""
        if self.selected_from is None:
            return range(0)
        first, last = sorted((self.selected_from, self.cursor))
        return range(first, min(last + 1, self.count))

    def column(
        self, before: Cells, parts: Cells, width: int, base: Style, left_out: int = 0
    ) -> list[Strip]:
        """A line as rows of a width: one with what is seen of it, or all where lines wrap.

        Args:
          before: stays where it is when the line is panned, and is not wrapped.
          left_out: cells that are missing at the beginning of `parts`.
        """
        now = self._now
        wrapped = self.room if now.wrap else 0
        key = (*before, None, *parts, width, base, left_out, now.panned, wrapped)
        found = self._drawn.get(key)
        if found is None:
            found = self._drawn[key] = self._column(
                before, without_tabs(parts), width, base, left_out
            )
        return found

    def _column(
        self, before: Cells, parts: Cells, width: int, base: Style, left_out: int
    ) -> list[Strip]:
        now = self._now
        if not now.wrap and all(text.isascii() for text, _ in (*before, *parts)):
            return [self._plain_row(before, parts, width, base, now.panned, left_out)]
        prefix, body = self.strip(before, base), self.strip(parts, base)
        room = max(width - prefix.cell_length, 1)
        if self.wrap:
            rows = self._rows(body, room, base)
        else:
            rows = [self._panned(left_out, body, room, base)]
        ahead = [prefix]
        if len(rows) > 1:
            ahead += [self._continued(prefix, base)] * (len(rows) - 1)
        return [
            Strip.join([first, row]).crop(0, width).extend_cell_length(width, base)
            for first, row in zip(ahead, rows, strict=True)
        ]

    def _plain_row(
        self, before: Cells, parts: Cells, width: int, base: Style, panned: int, left_out: int
    ) -> Strip:
        """The row of a line that does not wrap and has a cell for each character.

        Nearly all lines are such, and strips are dear: this makes one, of what is seen.
        """
        start = panned - left_out
        room = max(width - sum(len(text) for text, _ in before), 1)
        length = sum(len(text) for text, _ in parts)
        shown = between(parts, start, start + room) if start or length > room else parts
        if length > start + room:
            shown = [*between(shown, 0, room - 1), (GOES_ON, "lineview--more")]
        if panned and (parts or left_out):
            shown = [(CAME_FROM, "lineview--more"), *between(shown, 1, room)]
        row = self.strip([*before, *shown], base)
        return row.crop(0, width).extend_cell_length(width, base)

    def strip(self, parts: Cells, base: Style) -> Strip:
        """Parts of a line as they are drawn."""
        look = self._now.look
        return Strip([Segment(visible(text), look(base, name)) for text, name in parts])

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

    def _panned(self, left_out: int, body: Strip, room: int, base: Style) -> Strip:
        """The part of a line that is seen, with marks where it goes on."""
        start = self.panned - left_out
        shown = body.crop(start, start + room)
        more = base + self._style("lineview--more")
        if body.cell_length > start + room:
            shown = Strip.join([shown.crop(0, room - 1), Strip([Segment(GOES_ON, more)])])
        if self.panned and (body.cell_length or left_out):
            shown = Strip.join([Strip([Segment(CAME_FROM, more)]), shown.crop(1)])
        return shown

    def _continued(self, prefix: Strip, base: Style) -> Strip:
        """What stands before a row that is not a line's first."""
        width = prefix.cell_length
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

    def pan_home(self) -> None:
        """Show lines from where they begin."""
        self.panned = 0

    def pan_end(self) -> None:
        """Show the end of the longest line on the screen."""
        self.panned = 0 if self.wrap else self.widest() - self._body_width()

    def _body_width(self) -> int:
        """Cells that the line under the cursor has on the screen."""
        if not self.count:
            return self.columns
        return self.columns - self.strip(self.prefix(self.cursor), Style.null()).cell_length

    def widest(self) -> int:
        """Cells of the longest line on the screen."""
        first = self.scroll_offset.y
        shown = range(first, min(first + self.room, self.rows))
        return max((self._length(self.line_of(row)) for row in shown), default=0)

    def _length(self, line: int) -> int:
        return self.left_out(line) + self.strip(self.cells(line), Style.null()).cell_length

    def on_click(self, event: events.Click) -> None:
        line = self.line_at(event.y)
        if line is not None and event.x < self.columns:
            self.cursor = line

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.x >= self.columns and self.rows > self.room:
            self._is_dragged = True
            self.capture_mouse()
            self._drag(event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._is_dragged:
            self._drag(event.y)

    def on_mouse_up(self) -> None:
        if self._is_dragged:
            self._is_dragged = False
            self.release_mouse()

    def _drag(self, cell: int) -> None:
        """Show what stands where the bar is held."""
        self.scroll_to(y=bar.top_at(self.rows, self.room, cell), animate=False, force=True)

    def on_resize(self) -> None:
        self._fit_lines()  # it is drawn anew as it is


class _Drawing:
    """What is the same for all lines of a screen: Textual works much of it out at each question."""

    def __init__(self, view: LineView) -> None:
        self._view = view
        self._looks: dict[tuple[Style, str], Style] = {}
        self.base = base = view.rich_style
        self.columns = view.columns
        self.room, self.rows, self.top = view.room, view.rows, view.scroll_offset.y
        self.wrap, self.panned = view.wrap, view.panned
        self.cursor, self.selected = view.cursor, view.selected
        self.of_cursor = base + view._style("lineview--cursor")
        self.of_selected = base + view._style("lineview--selected")
        self.blank = Strip.blank(self.columns, base)
        self.thumb = bar.thumb(self.rows, self.room, self.top)
        self.bar = Segment(bar.THUMB, base + view._style("lineview--bar"))
        self.no_bar = Segment(bar.TRACK, base)

    def look(self, base: Style, name: str) -> Style:
        """How a part of a line looks."""
        found = self._looks.get((base, name))
        if found is None:
            found = self._looks[base, name] = base + self._view._style(name)
        return found
