"""The lists: filtering them, and moving among kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.tui.actions import action

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp


@action("list.filter", "f", "filter the list: kernels, or passes", ahead=True)
def narrow(app: BrowseApp) -> None:
    pane = app.steps if app.focused is app.steps else app.kernels
    app.back_to = pane
    app.ask(pane.filter_hint, value=pane.filter_text, typed=pane.filter)


@action("kernels.next_failed", "right_parenthesis", "next kernel that failed")
def next_failed(app: BrowseApp) -> None:
    app.kernels.next_failed(1)


@action("kernels.previous_failed", "left_parenthesis", "previous kernel that failed")
def previous_failed(app: BrowseApp) -> None:
    app.kernels.next_failed(-1)


@action("kernels.failed_first", "exclamation_mark", "what failed before the others")
def failed_first(app: BrowseApp) -> None:
    app.kernels.failed_first(not app.kernels.list.failed_first)


@action("kernels.other_dump", "B", "the kernel as the other directory has it")
def other_dump(app: BrowseApp) -> None:
    app.kernels.side = 1 - app.kernels.side


@action("kernels.message", "M", "fold the failure's message")
def message(app: BrowseApp) -> None:
    app.failure.folded = not app.failure.folded
