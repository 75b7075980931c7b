"""The Python source beside the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("source.show", "o", "Python source below the text, linked both ways")
def source(app: BrowseApp) -> None:
    if app.focused is app.source:
        app.focus_pane(-1)
    app.sourcing = not app.sourcing
