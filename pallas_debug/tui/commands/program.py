"""Help, the palette, how things look, closing what is on top, and leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action
from pallas_debug.tui.palette import choices

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("program.help", "question_mark", "help: the keys of this pane, and of all")
def show_help(app: BrowseApp) -> None:
    app.show_help()


@action("program.palette", "ctrl+p", "palette: everything that can be done, by name")
def palette(app: BrowseApp) -> None:
    def chosen(name: str | None) -> None:
        if name is not None:
            app.call_later(app.action_perform, name)

    app.choose("what to do", choices(app.keymap.keys), chosen)


@action("program.follow", "F", "follow: show the newest kernel or pass as it is written")
def follow(app: BrowseApp) -> None:
    app.following = not app.following
    if app.following and app.watched.new:
        app.go_to_kernel(app.watched.new[-1])
    app.watched.seen()
    app.say("following; F ends it" if app.following else "no longer following")


@action("program.theme", "", "theme: light and dark ones")
def theme(app: BrowseApp) -> None:
    def chosen(name: str | None) -> None:
        if name is not None:
            app.theme = app.chosen_theme = name

    themes = app.available_themes
    names = sorted(themes, key=lambda name: (not themes[name].dark, name))
    listed = [(f"{name}  {'dark' if themes[name].dark else 'light'}", name) for name in names]
    app.choose("theme", listed, chosen, at=names.index(app.theme))


@action("program.suspend", "ctrl+z", "back to the shell; fg comes back")
def suspend(app: BrowseApp) -> None:
    app.action_suspend_process()


@action("program.peel", "escape,ctrl+c", "close what is on top")
def peel(app: BrowseApp) -> None:
    app.peel()


@action("program.quit", "q", "quit")
def leave(app: BrowseApp) -> None:
    app.exit()
