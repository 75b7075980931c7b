"""Help, the palette, closing what is on top, and leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("program.help", "question_mark", "help")
def show_help(app: BrowseApp) -> None:
    app.show_help()


@action("program.palette", "ctrl+p", "everything that can be done, by name")
def palette(app: BrowseApp) -> None:
    app.action_command_palette()


@action("program.peel", "escape", "close what is on top")
def peel(app: BrowseApp) -> None:
    app.peel()


@action("program.quit", "q", "quit")
def leave(app: BrowseApp) -> None:
    app.exit()
