"""A list to choose from, with a line to narrow it down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from pallas_debug.tui.lineview import Cells, LineView

T = TypeVar("T")


class _List(LineView, can_focus=False):
    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str] = []

    @property
    def count(self) -> int:
        return len(self.labels)

    class Clicked(Message):
        """A line of the list was clicked."""

    def on_click(self, event: events.Click) -> None:
        super().on_click(event)
        self.post_message(self.Clicked())

    def cells(self, line: int) -> Cells:
        return [(f" {'›' if line == self.cursor else ' '} ", ""), (self.labels[line], "")]


class Chooser(ModalScreen[T | None], Generic[T]):
    """One of several, or None.

    Args:
      title: what is chosen.
      choices: what each is called, and what it is.
      at: the one that the cursor stands on at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "dismiss", "close", show=False),
        Binding("down,ctrl+n", "move(1)", "down", show=False),
        Binding("up,ctrl+p", "move(-1)", "up", show=False),
        Binding("pagedown", "move(10)", "page down", show=False),
        Binding("pageup", "move(-10)", "page up", show=False),
    ]

    CSS = """
    Chooser { align: center middle; }
    #chooser { width: 72; max-width: 100%; height: 22; max-height: 100%; background: $panel; }
    #chooser Static { height: 1; padding: 0 1; text-style: bold; }
    #chooser Input { height: 1; border: none; padding: 0 1; }
    #chooser _List { height: 1fr; }
    """

    def __init__(self, title: str, choices: Sequence[tuple[str, T]], *, at: int = 0) -> None:
        super().__init__()
        self._at = at
        self._title = title
        self._choices = list(choices)
        self._shown = self._choices

    def compose(self) -> ComposeResult:
        with Vertical(id="chooser"):
            yield Static(self._title, markup=False)
            yield Input(placeholder="filter", compact=True)
            yield _List()

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("", keep=self._at)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, words: str, *, keep: int = 0) -> None:
        """Those that have every word in their label, in either case."""
        wanted = words.lower().split()
        self._shown = [c for c in self._choices if all(w in c[0].lower() for w in wanted)]
        shown = self.query_one(_List)
        shown.labels = [label for label, _ in self._shown]
        shown.changed(keep=keep)

    def action_move(self, lines: int) -> None:
        self.query_one(_List).cursor += lines

    @on(Input.Submitted)
    def _entered(self) -> None:
        at = self.query_one(_List).cursor
        self.dismiss(self._shown[at][1] if self._shown else None)

    @on(_List.Clicked)
    def _clicked(self) -> None:
        self._entered()
