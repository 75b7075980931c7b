"""What we take from Textual that it does not offer: kept in one place, with the reason for each.

Tried with Textual 8.2. None of it is needed for a pane or an action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from textual._styles_cache import StylesCache
from textual.binding import Binding, BindingsMap

if TYPE_CHECKING:
    from textual.app import App
    from textual.color import Color
    from textual.css.styles import StylesBase
    from textual.dom import DOMNode
    from textual.geometry import Size, Spacing
    from textual.scroll_view import ScrollView
    from textual.strip import Strip
    from textual.widget import Widget

OURS = "pallas_debug."


def set_bindings(app: App[None], bindings: Iterable[Binding]) -> None:
    """These bindings and no others: what Textual gives to every app would not be in our help.

    `App.set_keymap` changes the keys of bindings that have some; it gives none to an action that
    has no key, and takes none away.
    """
    app._bindings = BindingsMap(bindings)


def bindings_of(node: DOMNode) -> Iterator[Binding]:
    """What the keys do while a widget of ours has the focus, without what Textual adds to it."""
    seen: set[str] = set()
    for kind in type(node).__mro__:
        if not kind.__module__.startswith(OURS):
            continue
        for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", ())):
            if binding.key not in seen:
                seen.add(binding.key)
                yield binding


def set_virtual_size(view: ScrollView, size: Size) -> None:
    """How much there is to scroll through, without laying out the whole screen anew for it.

    To Textual a virtual size is a reason for a layout, as others might depend on it; how large
    panes are never does. What remains is the scrollbar; if it comes or goes, there is a layout.
    """
    view.virtual_size = size
    view._scroll_update(size)


class _AsDrawn(StylesCache):
    """The lines of a widget as it draws them, where it has neither border nor padding.

    For each line Textual looks up all that a style might do to it, which takes as long as drawing.
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
        return super().render_line(
            styles,
            y,
            size,
            content_size,
            padding,
            base_background,
            background,
            render_content_line,
            *others,
        )


def draw_as_given(view: Widget) -> None:
    """Draw the lines of a view that fill it, and that have all of its styles, as they are."""
    view._styles_cache = _AsDrawn()


def write(app: App[None], sequence: str) -> None:
    """A control sequence to the terminal, as it is; nowhere where there is no terminal."""
    driver = app._driver
    if driver is not None and not driver.is_headless:
        driver.write(sequence)


def drop_reports(app: App[None]) -> None:
    """Have Textual print no traceback of its own when the app ends: ours goes to a file."""
    app._exit_renderables.clear()
