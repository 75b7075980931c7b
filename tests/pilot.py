"""Helpers of the terminal UI's tests: async tests, keys, and waiting for workers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import string
import time
from collections.abc import Callable, Coroutine
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.widgets.frame import frame_of

SECONDS = 60.0
"""Maximum seconds of waiting, for machines that are busy."""


def drive(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test: no plugin for that is among the project's requirements."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


def screen_rows(app: App[None]) -> list[str]:
    """The rows of the screen, without colours."""
    return ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]


def screen_text(app: App[None]) -> str:
    """What is on the screen, without colours and trailing blanks."""
    return "\n".join(row.rstrip() for row in screen_rows(app)) + "\n"


def style_text(app: App[None]) -> str:
    """A letter for the style of each cell, and what the letters mean."""
    letters: dict[str, str] = {}
    rows = []
    for row in app.screen._compositor.render_strips():
        cells = ""
        for segment in row:
            letter = letters.setdefault(str(segment.style), string.ascii_letters[len(letters)])
            cells += letter * segment.cell_length
        rows.append(cells)
    meanings = [f"{letter} {style}" for style, letter in letters.items()]
    return "\n".join([*rows, *meanings]) + "\n"


def message(app: App[None]) -> str:
    """What is in the bottom line: a message, or keys."""
    return str(app.query_one("#status", Static).render())


def status(app: BrowseApp) -> str:
    """The message, and what the frame around the text says of the line under its cursor."""
    return f"{message(app)} {frame_of(app.text).note}"


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, each after the effects of the one before."""
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    """Wait for the result of a worker.

    Raises:
      AssertionError: it did not come.
    """
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "what the test waits for did not happen"
        await pilot.pause(0.01)
    await pilot.pause()
