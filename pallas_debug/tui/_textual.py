"""What we take from Textual that it does not offer: kept in one place, with the reason for each.

Tried with Textual 8.2. None of it is needed for a pane or an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from textual.binding import Binding, BindingsMap

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

OURS = "pallas_debug."


def set_bindings(app: App[None], bindings: Iterable[Binding]) -> None:
    """These bindings and no others: what Textual gives to every app would not be in our help.

    `App.set_keymap` changes the keys of bindings that have some; it gives none to an action that
    has no key, and takes none away.
    """
    app._bindings = BindingsMap(bindings)


def bindings_of(node: DOMNode) -> Iterator[Binding]:
    """What the keys do while a widget of ours has the focus, without what Textual adds to it."""
    seen: set[str] = set()
    for kind in type(node).__mro__:
        if not kind.__module__.startswith(OURS):
            continue
        for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", ())):
            if binding.key not in seen:
                seen.add(binding.key)
                yield binding


def write(app: App[None], sequence: str) -> None:
    """A control sequence to the terminal, as it is; nowhere where there is no terminal."""
    driver = app._driver
    if driver is not None and not driver.is_headless:
        driver.write(sequence)


def drop_reports(app: App[None]) -> None:
    """Have Textual print no traceback of its own when the app ends: ours goes to a file."""
    app._exit_renderables.clear()
