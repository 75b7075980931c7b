"""How the text is shown, and moving along its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("text.locations", "L", "fold locations away")
def locations(app: BrowseApp) -> None:
    app.text.folded = not app.text.folded


@action("text.wrap", "w", "wrap long lines")
def wrap(app: BrowseApp) -> None:
    for pane in (app.text, app.diff):
        pane.wrap = not pane.wrap


@action("text.fold", "minus", "fold the region around the line, or unfold it")
def fold(app: BrowseApp) -> None:
    app.text.toggle_fold()


@action("text.fold_all", "underscore", "fold all regions")
def fold_all(app: BrowseApp) -> None:
    app.text.fold_all()


@action("text.unfold_all", "plus", "unfold all regions")
def unfold_all(app: BrowseApp) -> None:
    app.text.unfold_all()


@action("text.trail", "u", "what became of the operation, pass by pass")
def trail(app: BrowseApp) -> None:
    app.follow_operation()


@action("search.regex", "ctrl+r", "search for an expression, or for the text as it stands")
def regex(app: BrowseApp) -> None:
    app.shown.toggle_regex()
    app.say("regular expression" if app.shown.regex else "searched as it stands")


@action("search.case", "ctrl+t", "upper and lower case: as typed, alike, or told apart")
def case(app: BrowseApp) -> None:
    app.shown.next_case()
    said = {
        "smart": "capitals tell case apart",
        "ignored": "case is ignored",
        "kept": "case counts",
    }
    app.say(said[app.shown.case])


@action("text.use", "x", "next use of the line's value")
def use(app: BrowseApp) -> None:
    if not app.text.next_use():
        app.say("nothing in this text uses what the line defines")


@action("text.definition", "X", "definition of the line's first operand")
def definition(app: BrowseApp) -> None:
    if not app.text.to_definition():
        app.say("no operand of the line is defined in this text")
