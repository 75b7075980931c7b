"""Workarounds for Textual, most of them with private parts of it, each with its reason.

Tested with 8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from textual._styles_cache import StylesCache
from textual.binding import Binding, BindingsMap
from textual.content import Content
from textual.geometry import Region

if TYPE_CHECKING:
    from textual.app import App
    from textual.color import Color
    from textual.css.styles import StylesBase
    from textual.geometry import Size, Spacing
    from textual.scroll_view import ScrollView
    from textual.strip import Strip
    from textual.widget import Widget


def set_bindings(app: App[None], bindings: Iterable[Binding]) -> None:
    """Replace the bindings of an app.

    `BINDINGS` is read when a class is defined, before the subclasses register their actions, and
    `App.bind` cannot give a key priority.
    """
    app._bindings = BindingsMap(bindings)


def set_virtual_size(view: ScrollView, size: Size) -> None:
    """Set the scrollable size of a view without a layout of the whole screen.

    Textual lays out the screen whenever a virtual size changes, as other widgets may depend on it.
    The sizes of our panes never do.
    """
    view.virtual_size = size
    view._scroll_update(size)


def set_border_labels(widget: Widget, title: str, subtitle: str) -> None:
    """Set the texts in a border, and draw only the rows of the border that changed.

    Textual reads markup in them, and redraws the whole widget with all that is in it.
    """
    width, height = widget.outer_size
    labels = (("_border_title", title, -1), ("_border_subtitle", subtitle, height - 2))
    for name, text, row in labels:
        content = Content(text) if text else None
        if content != getattr(widget, name):
            setattr(widget, name, content)
            widget.refresh(Region(-1, row, width, 1))  # relative to what is inside the border


class _UnstyledLines(StylesCache):
    """Styles cache that returns the lines of a widget without border and padding unchanged.

    Textual looks up every style that may apply to each line, which takes as long as drawing it.
    """

    def render_line(
        self,
        styles: StylesBase,
        y: int,
        size: Size,
        content_size: Size,
        padding: Spacing,
        base_background: Color,
        background: Color,
        render_content_line: Callable[[int], Strip],
        *others: Any,
    ) -> Strip:
        if size == content_size:
            line = render_content_line(y)
            if line.cell_length == size.width:
                return line
            inner, _ = self.get_inner_outer(base_background, background)
            return line.adjust_cell_length(size.width, inner.rich_style)
        given = styles, y, size, content_size, padding, base_background, background
        return super().render_line(*given, render_content_line, *others)


def draw_unstyled(view: Widget) -> None:
    """Draw the lines of a view as rendered: they already have all of its styles."""
    view._styles_cache = _UnstyledLines()


async def run_bindings(app: App[None], key: str) -> None:
    """Run the action of a key in the focused widget, its ancestors, or the app."""
    if not await app._check_bindings(key, priority=True):
        await app._check_bindings(key)


def discard_traceback(app: App[None]) -> None:
    """Keep Textual from printing a traceback at exit, as the command reports the error."""
    app._exit_renderables.clear()
