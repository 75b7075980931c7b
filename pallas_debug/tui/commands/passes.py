"""Moving through the passes and targets of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("pass.next_changed", "]", "next pass that changed something")
def next_changed(app: BrowseApp) -> None:
    app.steps.next_changed(1)


@action("pass.previous_changed", "[", "previous pass that changed something")
def previous_changed(app: BrowseApp) -> None:
    app.steps.next_changed(-1)


@action("pass.next", "}", "next pass")
def following(app: BrowseApp) -> None:
    app.steps.cursor += 1


@action("pass.previous", "{", "previous pass")
def previous(app: BrowseApp) -> None:
    app.steps.cursor -= 1


@action("pass.hide_same", "H", "hide passes that changed nothing")
def hide_same(app: BrowseApp) -> None:
    app.steps.only_changed = not app.steps.only_changed
    app.show_step()


@action("target.next", "t", "next target")
def next_target(app: BrowseApp) -> None:
    app.go_to_target(1)


@action("target.previous", "T", "previous target")
def previous_target(app: BrowseApp) -> None:
    app.go_to_target(-1)
