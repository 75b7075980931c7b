"""Taking what is shown elsewhere: the clipboard, a file, an editor, a pager."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("copy.line", "y", "copy the line")
def copy_line(app: BrowseApp) -> None:
    if app.text.count:
        app.copy_to_clipboard(app.text.line(app.text.cursor))
        app.say("copied the line")


@action("copy.command", "", "copy the command that prints what is shown")
def copy_command(app: BrowseApp) -> None:
    if app.place is not None:
        command = app.browser.command(app.place, app.base)
        app.copy_to_clipboard(command)
        app.say(f"copied: {command}")
