"""The help screen: the keys as they are bound, not as somebody once wrote them down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_NAMES = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "escape": "esc",
    "pagedown": "pgdn",
    "pageup": "pgup",
}


class HelpScreen(ModalScreen[None]):
    """What each key does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "close", show=False)
    ]

    CSS = """
    HelpScreen { align: center middle; }
    #help {
        width: 64; max-width: 100%; height: auto; max-height: 100%;
        background: $panel; padding: 0 2;
    }
    """

    def __init__(self, *groups: Iterable[BindingType]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static("\n".join(lines(*self._groups)), markup=False)


def lines(*groups: Iterable[BindingType]) -> list[str]:
    """A line for each binding."""
    found = []
    for group in groups:
        for binding in group:
            assert isinstance(binding, Binding)
            keys = " ".join(_NAMES.get(key, key) for key in binding.key.split(","))
            found.append(f"{keys:>16}  {binding.description}")
        found.append("")
    return found[:-1]
