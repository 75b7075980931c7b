"""Findings and prints of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action
from pallas_debug.tui.runs import Result

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("runs.show", "R", "findings and prints of tests and scripts")
def show(app: BrowseApp) -> None:
    from pallas_debug.tui.results import RunsScreen  # not at the start

    app.push_screen(RunsScreen(app.kernels.runs, opened=lambda result: _open(app, result)))


def _open(app: BrowseApp, result: Result) -> None:
    """Show the kernel, and the Python line in its source."""
    if result.entry is None or not app.kernels.select(result.entry):
        app.say(f"the kernel {result.kernel} is not in this directory")
        return
    app.show_kernel()
    if result.source is None:
        return
    if result.source.file != app.browser.source_file(result.entry):
        app.say(f"{result.source} is not in the source that the dump keeps")
        return
    app.sourcing = True
    app._focus(app.source)
    app.source.cursor = result.source.line - 1
