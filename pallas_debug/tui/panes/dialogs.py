"""Modal screens: the help, and a chooser."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from pallas_debug.tui.keys import HEADINGS, MOVING, Action, display_keys
from pallas_debug.tui.widgets.cells import Cells
from pallas_debug.tui.widgets.lineview import LineView

T = TypeVar("T")

Section = list[tuple[str, str]]
"""Section of the help: keys, and what they do."""

_KEY_COLUMNS = 14
"""Number of columns for keys, if there is room."""


class ChoiceList(LineView, can_focus=False):
    """List of a `Chooser`, which handles the keys that move the cursor."""

    class ChoiceClicked(Message):
        """Message: a line was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str] = []

    @property
    def count(self) -> int:
        return len(self.labels)

    def cells(self, line: int) -> Cells:
        return [(f" {'›' if line == self.cursor else ' '} ", ""), (self.labels[line], "")]

    def on_click(self, event: events.Click) -> None:
        super().on_click(event)
        self.post_message(self.ChoiceClicked())


class Chooser(ModalScreen[T | None], Generic[T]):
    """Modal list with a filter above it. Returns the chosen value, or None.

    Args:
      choices: labels and values.
      at: initial cursor position.
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
    #chooser ChoiceList { height: 1fr; }
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
            yield ChoiceList()

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("", keep=self._at)

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, words: str, *, keep: int = 0) -> None:
        """Show the choices that contain all words, ignoring case."""
        wanted = words.lower().split()
        self._shown = [c for c in self._choices if all(w in c[0].lower() for w in wanted)]
        shown = self.query_one(ChoiceList)
        shown.labels = [label for label, _ in self._shown]
        shown.changed(keep=keep)
        nothing = "" if self._shown else ": nothing matches"
        self.query_one(Static).update(self._title + nothing)

    def action_move(self, lines: int) -> None:
        self.query_one(ChoiceList).cursor += lines

    @on(Input.Submitted)
    @on(ChoiceList.ChoiceClicked)
    def _choose(self) -> None:
        at = self.query_one(ChoiceList).cursor
        self.dismiss(self._shown[at][1] if self._shown else None)


class HelpScreen(ModalScreen[None]):
    """Help screen: current keys of the focused pane, then of all actions."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,ctrl+c", "dismiss", "close", show=False)
    ]

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: 72; max-width: 100%; height: 90%; background: $panel; padding: 0 1; }
    """

    def __init__(self, actions: Iterable[Action]) -> None:
        super().__init__()
        self._sections = help_sections(actions)

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield HelpLines(self._sections)

    def on_mount(self) -> None:
        self.query_one(HelpLines).focus()


class HelpLines(LineView):
    """View of the lines of the help."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--heading", "help--keys"}
    DEFAULT_CSS = """
    HelpLines {
        height: 1fr;
        & .help--heading { text-style: bold underline; }
        & .help--keys { text-style: bold; }
    }
    """

    def __init__(self, sections: Mapping[str, Section]) -> None:
        super().__init__()
        self._sections = sections
        self.lines: list[Cells] = []

    @property
    def count(self) -> int:
        return len(self.lines)

    def cells(self, line: int) -> Cells:
        return self.lines[line]

    def on_resize(self) -> None:
        self.lines = help_lines(self._sections, self.columns)
        self.changed()


def moving_keys() -> Section:
    """Return the navigation keys that all panes share."""
    keys: dict[tuple[str, str], list[str]] = {}
    for binding in Binding.make_bindings(LineView.BINDINGS):
        keys.setdefault((binding.action, binding.description), []).append(binding.key)
    return [(display_keys(",".join(k)), what) for (_, what), k in keys.items()]


def help_sections(actions: Iterable[Action]) -> dict[str, Section]:
    """Return the keys and their descriptions, by heading."""
    found: dict[str, Section] = {MOVING: moving_keys()}
    for action in actions:
        heading = HEADINGS[action.group]
        if action.keys:
            found.setdefault(heading, []).append((display_keys(action.keys), action.title))
    return found


def help_lines(sections: Mapping[str, Section], width: int) -> list[Cells]:
    """Return the lines of the help, wrapped to a width."""
    room = min(_KEY_COLUMNS, max(width // 3, 6))
    lines: list[Cells] = []
    for heading, entries in sections.items():
        lines += [[("", "")], [(heading, "help--heading")]]
        for keys, what in entries:
            rows = textwrap.wrap(what, max(width - room - 2, 8)) or [""]
            if len(keys) > room:
                lines.append([(keys, "help--keys")])
                keys = ""
            for row in rows:
                lines.append([(f"{keys:>{room}}  ", "help--keys"), (row, "")])
                keys = ""
    return lines[1:]
