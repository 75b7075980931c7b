"""Moving between panes, and how much room they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("pane.next", "tab", "next pane", ahead=True)
def following(app: BrowseApp) -> None:
    app.focus_pane(1)


@action("pane.previous", "shift+tab", "previous pane", ahead=True)
def previous(app: BrowseApp) -> None:
    app.focus_pane(-1)


@action("pane.into", "enter", "into the next pane; in the text, fold a region")
def into(app: BrowseApp) -> None:
    if app.focused is app.trail:
        app.trail.choose()
    elif app.focused is app.text:
        app.text.toggle_fold()
    elif app.focused is not app.diff:
        app.focus_pane(1)


@action("pane.zoom", "z", "zoom a pane")
def zoom(app: BrowseApp) -> None:
    app.zoomed = not app.zoomed
