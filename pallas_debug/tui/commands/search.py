"""Searching."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.worker import Worker, get_current_worker

from pallas_debug.tui.actions import action
from pallas_debug.tui.everywhere import Found, Run, Scope, query_of, step_of

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("search.text", "slash", "search the text", ahead=True)
def search(app: BrowseApp) -> None:
    def typed(value: str) -> None:
        app.shown.search(value)
        app.tell()

    app.ask("regular expression", typed=typed)


@action("search.only", "ampersand", "only the lines that have something, with some around")
def only(app: BrowseApp) -> None:
    if app.shown is not app.text:
        app.say("a diff shows only what changed as it is")
        return

    def typed(value: str) -> None:
        app.text.search(value)
        app.text.narrow(bool(value))
        app.tell()

    app.ask("only lines with: regular expression", typed=typed)


@action("search.next", "n", "next hit")
def following(app: BrowseApp) -> None:
    _next(app, 1)


@action("search.previous", "N", "previous hit")
def previous(app: BrowseApp) -> None:
    _next(app, -1)


@action("search.kernel", "ctrl+f", "search all passes of the kernel")
def search_kernel(app: BrowseApp) -> None:
    _search(app, "kernel")


@action("search.all", "ctrl+g", "search all kernels")
def search_all(app: BrowseApp) -> None:
    _search(app, "all")


def _search(app: BrowseApp, scope: Scope) -> None:
    entry = app.entry
    if entry is None:
        return
    if app.search.scope != scope or (scope == "kernel" and app.search.entry != entry):
        app.search.clear()
    app.search.scope = scope

    def begin(text: str) -> None:
        _start(app, app.search.begin(text, scope, entry), "search")

    from pallas_debug.tui.results import SearchScreen  # not at the start

    where = entry.name if scope == "kernel" else f"{len(app.browser.entries):,} kernels"
    title = f"search in {where}"
    screen = SearchScreen(
        app.search,
        title,
        begin=begin,
        more=lambda: _list_more(app),
        opened=lambda found: _open(app, found),
    )
    app.push_screen(screen)


def _start(app: BrowseApp, run: Run, group: str) -> None:
    app.run_worker(
        lambda: run(_is_cancelled(get_current_worker())), thread=True, group=group, exclusive=True
    )


def _list_more(app: BrowseApp) -> None:
    """List further hits, if one comes near the last that is listed."""
    if run := app.search.near_end():
        _start(app, run, "list")


def _is_cancelled(worker: Worker[object]) -> Callable[[], bool]:
    return lambda: worker.is_cancelled


def _open(app: BrowseApp, found: Found) -> None:
    """Show a hit of a search over many texts."""
    target, step = step_of(app.browser, found)
    if step is None or not app.kernels.select(found.entry):
        app.say(f"{found.path} has gone")
        return
    app.diffing = False
    app.wanted_target = target or app.wanted_target
    app.show_kernel()
    app.steps.select(step.label)
    app.show_step()
    app.text.go_to(found.line)
    app.text.mark(query_of(app.search.text))
    app._focus(app.text)
    app.tell()


def _next(app: BrowseApp, direction: int) -> None:
    """The next hit: in the text, if it is searched, or else of the search over many texts."""
    if app.shown.where or not app.search.active:
        app.shown.next_hit(direction)
        app.tell()
        return
    _list_more(app)
    if found := app.search.next(direction):
        _open(app, found)
    elif app.search.hits:
        app.say("the next hits are being listed; press it again")
