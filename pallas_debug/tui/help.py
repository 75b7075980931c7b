"""The help screen: the keys as they are bound, not as somebody once wrote them down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from pallas_debug.tui.actions import spelled


class HelpScreen(ModalScreen[None]):
    """What each key does: in the pane that has the focus, then everywhere."""

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

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static("\n".join(self._lines()), markup=False)

    def _lines(self) -> list[str]:
        """A line for each binding of the app and of the pane below, as they are now."""
        below = self.app.screen_stack[-2]
        nodes = [below.focused, self.app] if below.focused is not None else [self.app]
        groups = [lines(_bound(node)) for node in nodes]
        return [line for group in groups for line in [*group, ""]][:-1]


def _bound(node: object) -> list[Binding]:
    bindings = getattr(node, "_bindings")  # noqa: B009
    return [b for found in bindings.key_to_bindings.values() for b in found]


def lines(bindings: Iterable[Binding]) -> list[str]:
    """A line for each thing that keys do, with all its keys."""
    keys: dict[tuple[str, str], list[str]] = {}
    for binding in bindings:
        if binding.description and not binding.system:
            keys.setdefault((binding.action, binding.description), []).append(binding.key)
    return [f"{spelled(','.join(k)):>16}  {what}" for (_, what), k in keys.items()]
