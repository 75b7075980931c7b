"""Comparing a text with another: what came before it, another target, kernel or dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action
from pallas_debug.tui.model import BEFORE, Against

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("diff.show", "d", "what the pass changed")
def show(app: BrowseApp) -> None:
    app.diffing = not app.diffing


@action("diff.against", "D", "compare with another pass, target, kernel or dump")
def against(app: BrowseApp) -> None:
    def chosen(wanted: Against | None) -> None:
        if wanted is not None:
            app.against = wanted
            app.diffing = True
            app.show_step()

    app.choose("compare with", _choices(app), chosen)


@action("diff.noise", "i", "count noise as change: value numbers, locations, attribute order")
def noise(app: BrowseApp) -> None:
    app.noise = not app.noise


@action("diff.split", "s", "side by side, or one below the other")
def split(app: BrowseApp) -> None:
    app.diff.toggle_split()


@action("diff.whole", "W", "all lines, or those around changes")
def whole(app: BrowseApp) -> None:
    app.diff.toggle_whole()


@action("diff.next", "greater_than_sign", "next change")
def following(app: BrowseApp) -> None:
    app.diff.next_hunk(1)


@action("diff.previous", "less_than_sign", "previous change")
def previous(app: BrowseApp) -> None:
    app.diff.next_hunk(-1)


def _choices(app: BrowseApp) -> list[tuple[str, Against]]:
    """Everything that the text at hand can be compared with, what is near to it first."""
    place = app.place
    if place is None:
        return []
    browser = app.browser
    choices = [("the text before", BEFORE)]
    if len(browser.roots) > 1 and browser.twin(place.entry) is not None:
        other = browser.roots[1 - place.entry.dump]
        choices.append((f"the same kernel in {other}", Against(other_dump=True)))
    for compilation in browser.stored(place.entry).compilations:
        if compilation.target != place.target:
            target = compilation.target
            choices.append((f"the same pass for {target}", Against(target=target)))
    for step in app.steps.all_steps:
        if step.changed and step != place.step:
            choices.append((step.label, Against(step=step.label)))
    for entry in browser.entries:
        if entry != place.entry:
            root = f" in {browser.roots[entry.dump]}" if len(browser.roots) > 1 else ""
            choices.append((f"the same pass of {entry.name}{root}", Against(entry=entry)))
    return choices
