"""`pallas-debug browse` from start to end: what was remembered, the app, and what it leaves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from textual.binding import Binding

from pallas_debug.errors import UsageError
from pallas_debug.tui import crash, keymap, opening, state, terminal
from pallas_debug.tui.actions import registry
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.lineview import LineView
from pallas_debug.tui.model import Browser


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it ended.

    Attributes:
      failed: by an error of its own, or from outside.
      said: what is to be said of that, or of what could not be remembered.
    """

    failed: bool
    said: str | None = None


def browse(
    roots: Sequence[Path],
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
    theme: str | None = None,
    resume: bool = True,
    starts: Callable[[], None] = lambda: None,
) -> Ended:
    """Browse one or two directories, or a file, until the user leaves.

    Args:
      resume: whether to open where one was, and to remember where one is in the end.
      starts: is called before the app takes the screen.

    Raises:
      UsageError: there is no such kernel, target, pass or theme; or the keymap is none.
      DumpDirectoryError: a directory does not exist or cannot be listed.
    """
    keys = keymap.load(keymap.path(), registry(), _pane_keys())
    browser = opening.SingleFile(roots[0]) if roots[0].is_file() else Browser(*roots)
    remembered, problem = state.load(state.path()) if resume else (state.State(), None)
    spot = opening.asked_for(
        browser,
        remembered.spot(roots),
        kernel=kernel,
        target=target,
        step=step,
        line=line,
    )
    notes = [*filter(None, [problem]), *keys.notes]
    colors = terminal.has_colors(os.environ)
    app = BrowseApp(browser, spot=spot, keymap=keys, colors=colors, notes=notes)
    _set_theme(app, theme or remembered.theme, wanted=theme is not None)
    starts()
    try:
        app.run()
    finally:
        app.tidy()
    if app.fault is not None:
        return Ended(failed=True, said=_reported(app.fault, app))
    if not resume or app.last is None:
        return Ended(failed=app.lost)
    latest, _ = state.load(state.path())  # another browse may have ended since
    latest = replace(latest.with_spot(app.last), theme=app.chosen_theme or latest.theme)
    return Ended(failed=app.lost, said=state.save(state.path(), latest))


def _set_theme(app: BrowseApp, theme: str | None, *, wanted: bool) -> None:
    if theme in app.available_themes:
        app.theme = theme
    elif wanted:
        listed = ", ".join(sorted(app.available_themes))
        raise UsageError(f"no theme {theme!r}; there are: {listed}")


def _pane_keys() -> dict[str, str]:
    """What the keys do that move in every pane."""
    bindings = Binding.make_bindings(LineView.BINDINGS)
    return {binding.key: binding.description for binding in bindings}


def _reported(error: BaseException, app: BrowseApp) -> str:
    file: Path | None = None
    with contextlib.suppress(OSError):
        file = crash.write(error, state.directory(), size=(app.size.width, app.size.height))
    return crash.sentence(error, file)
