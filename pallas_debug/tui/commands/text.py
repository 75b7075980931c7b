"""How the text is shown, and moving along its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("text.locations", "L", "fold locations away")
def locations(app: BrowseApp) -> None:
    app.text.folded = not app.text.folded


@action("text.use", "x", "next use of the line's value")
def use(app: BrowseApp) -> None:
    app.text.next_use()


@action("text.definition", "X", "definition of the line's first operand")
def definition(app: BrowseApp) -> None:
    app.text.to_definition()
