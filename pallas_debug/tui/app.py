"""The browse app: workspace with all actions, and its start."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from textual import work

from pallas_debug.store.files import is_file
from pallas_debug.tui.commands.marking import MarkingActions
from pallas_debug.tui.commands.moving import MovingActions
from pallas_debug.tui.commands.output import OutputActions
from pallas_debug.tui.commands.viewing import ViewingActions
from pallas_debug.tui.keys import action
from pallas_debug.tui.keys import registry as registry
from pallas_debug.tui.model.browser import BEFORE, Browser, SingleFile
from pallas_debug.tui.model.spot import Spot, find_spot
from pallas_debug.tui.widgets.choices import Choice

PRELOAD_AFTER = 0.5
"""Seconds after startup before modules are preloaded."""


def preload() -> None:
    """Preload the modules for diffs, which are slow to import and often used, and for dialogs."""
    import numpy  # noqa: F401

    import pallas_debug.ir.diff
    import pallas_debug.tui.panes.dialogs  # noqa: F401


class BrowseApp(MarkingActions, MovingActions, ViewingActions, OutputActions):
    """App of `pallas-debug browse`: kernels, their passes, and the text of each.

    Args:
      spot: place to open.
    """

    def __init__(self, browser: Browser, *, spot: Spot | None = None) -> None:
        super().__init__(browser)
        self._start_spot = spot

    # Startup.

    def on_mount(self) -> None:
        self.call_after_refresh(gc.enable)
        self.focus_on(self.kernels)
        self.show_kernel()
        if self.is_file:
            self.zoomed = True
            self.focus_on(self.text)
        else:
            self.set_timer(PRELOAD_AFTER, self._preload)
        if self._start_spot is not None:
            self._open_spot(self._start_spot)
        self.watch_terminal()

    @work(thread=True, group="preload")
    def _preload(self) -> None:
        preload()

    def _open_spot(self, spot: Spot) -> None:
        self.wanted_target = spot.target
        self.go_to_kernel(spot.entry)
        if spot.step is not None:
            self.go_to_step(spot.step)
        if spot.line is not None:
            self.text.cursor = spot.line - 1
        if spot.step is not None or spot.line is not None:
            self.focus_on(self.text)

    @action("pane.text", "3", "text", priority=True, arguments="2")
    @action("pane.passes", "2", "passes", priority=True, arguments="1")
    @action("pane.kernels", "1", "kernels", priority=True, arguments="0")
    def action_focus_number(self, number: int) -> None:
        self.focus_on((self.kernels, self.steps, self.shown)[number])

    @action("program.help", "question_mark", "help: keys of this pane, then of all")
    def action_help(self) -> None:
        self.show_help()

    @action("program.theme", "", "theme, light or dark")
    def action_choose_theme(self) -> None:
        def chosen(name: str | None) -> None:
            if name is not None:
                self.theme = name

        themes = self.available_themes
        names = sorted(themes, key=lambda name: (not themes[name].dark, name))
        choices = [Choice(n, n, "dark" if themes[n].dark else "light") for n in names]
        self.choose("Theme", choices, chosen, at=names.index(self.theme))

    @action("program.close", "escape,ctrl+c", "close the topmost view")
    def action_dismiss_top(self) -> None:
        """Close the topmost open item, but never the app."""
        if self.prompt.asking:
            self.prompt.cancel()
            self.after_prompt()
        elif self.kernels.filter_text:
            self.kernels.filter("")
        elif self.shown.where:
            self.shown.search(None)
        elif self.diffing:
            self.diffing = False
            self.against = BEFORE
        else:
            self.zoomed = False
        self.update_status()

    @action("program.quit", "q", "quit")
    async def action_quit(self) -> None:
        self.exit()


def browse(
    roots: Sequence[Path],
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
) -> bool:
    """Browse one or two directories, or a file; return whether the user ended it.

    Raises:
      UsageError: there is no such kernel, target or pass.
      DumpDirectoryError: a directory does not exist or cannot be listed.
      Exception: an internal error that ended the app.
    """
    gc.disable()
    browser = SingleFile(roots[0]) if is_file(roots[0]) else Browser(*roots)
    spot = find_spot(browser, kernel=kernel, target=target, step=step, line=line)
    app = BrowseApp(browser, spot=spot)
    app.run()
    if app.fault is not None:
        raise app.fault
    return not app.interrupted
