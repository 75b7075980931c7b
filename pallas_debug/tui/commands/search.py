"""Searching, and going to a place by its number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("search.text", "slash", "search the text", ahead=True)
def search(app: BrowseApp) -> None:
    def typed(value: str) -> None:
        app.text.search(_pattern(value))
        app.text.next_hit(1, here=True)
        app.tell()

    app.ask("regular expression", typed=typed)


@action("search.next", "n", "next hit")
def following(app: BrowseApp) -> None:
    app.text.next_hit(1)
    app.tell()


@action("search.previous", "N", "previous hit")
def previous(app: BrowseApp) -> None:
    app.text.next_hit(-1)
    app.tell()


@action("go.line", "colon", "go to a line", ahead=True)
def go_to(app: BrowseApp) -> None:
    def done(value: str) -> None:
        if value.strip().isdecimal():
            app.text.cursor = int(value) - 1

    app.ask("line", done=done)


def _pattern(text: str) -> re.Pattern[str] | None:
    """What was typed as a regular expression, or as it stands while it is none."""
    if not text:
        return None
    flags = 0 if any(c.isupper() for c in text) else re.IGNORECASE
    try:
        return re.compile(text, flags)
    except re.error:
        return re.compile(re.escape(text), flags)
