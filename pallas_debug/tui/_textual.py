"""Workarounds for Textual, most of them with private parts of it, each with its reason.

Tested with 8.2.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from textual._styles_cache import StylesCache
from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingsMap
from textual.content import Content
from textual.geometry import Region

if TYPE_CHECKING:
    from textual.app import App
    from textual.color import Color
    from textual.css.styles import StylesBase
    from textual.driver import Driver
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


def write(app: App[None], sequence: str) -> None:
    """Write a control sequence to the terminal, if there is one."""
    driver = app._driver
    if driver is not None and not driver.is_headless:
        driver.write(sequence)


def drawing_on_terminal(driver: type[Driver]) -> type[Driver]:
    """Return a driver that draws on standard output if standard error is not a terminal.

    Textual draws on standard error, so `2>file` would send the screen to the file. With this
    driver, the file only gets messages and the standard error output of libraries.
    """
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        return driver

    class OutputDriver(driver):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Characters that the terminal's encoding lacks are escaped, as on standard error.
            self._file = open(  # noqa: SIM115 - for as long as the process runs
                sys.__stdout__.fileno(),  # type: ignore[union-attr]
                "w",
                errors="backslashreplace",
                closefd=False,
            )

    return OutputDriver


async def run_bindings(app: App[None], key: str) -> None:
    """Run the action of a key in the focused widget, its ancestors, or the app."""
    if not await app._check_bindings(key, priority=True):
        await app._check_bindings(key)


def stop_process(app: App[None]) -> None:
    """Stop this process until the shell continues it in the foreground.

    Textual sends the signal to the process, so that the main thread may stop only after the event
    loop has begun to wait. If another thread then receives the shell's SIGCONT, nothing wakes the
    loop, and the screen stays empty. A signal to the calling thread stops it at once.
    """
    fileno = sys.__stdin__.fileno()  # type: ignore[union-attr]
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        with contextlib.suppress(SuspendNotSupported), app.suspend():
            # The kernel ignores it if no shell could continue the process.
            signal.raise_signal(signal.SIGTSTP)
            with contextlib.suppress(OSError):  # the terminal is gone
                while os.tcgetpgrp(fileno) != os.getpgrp():  # continued by `bg`
                    signal.raise_signal(signal.SIGSTOP)
    finally:
        signal.signal(signal.SIGTSTP, before)


def discard_traceback(app: App[None]) -> None:
    """Keep Textual from printing a traceback at exit, as the command reports the error."""
    app._exit_renderables.clear()
