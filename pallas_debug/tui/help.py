"""The help: the keys as they are bound now, not as somebody once wrote them down."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from pallas_debug.tui import _textual
from pallas_debug.tui.actions import registry, spelled
from pallas_debug.tui.lineview import Cells, LineView

HEADINGS: dict[str, str] = {
    "pane": "Panes",
    "go": "Going somewhere",
    "list": "Filtering",
    "kernels": "Kernels",
    "pass": "Passes",
    "target": "Targets",
    "search": "Searching",
    "text": "The text",
    "diff": "Comparing",
    "source": "The Python source",
    "copy": "Copying",
    "output": "Files and programs",
    "runs": "Runs and findings",
    "program": "The program",
}
"""How groups of actions are headed; one that is not here is headed by its name."""

MOVING = "Moving"

_WIDE = 14
"""Cells for keys, where there is room."""


class HelpScreen(ModalScreen[None]):
    """What each key does: in the pane that has the focus, then everywhere."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,ctrl+c", "dismiss", "close", show=False)
    ]

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: 72; max-width: 100%; height: 90%; background: $panel; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield HelpLines()

    def on_mount(self) -> None:
        self.query_one(HelpLines).focus()


class HelpLines(LineView):
    """The keys, line by line; the keys that move in every pane move in it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"help--heading", "help--keys"}
    DEFAULT_CSS = """
    HelpLines {
        height: 1fr;
        & .help--heading { text-style: bold underline; }
        & .help--keys { text-style: bold; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Cells] = []

    @property
    def count(self) -> int:
        return len(self.lines)

    def cells(self, line: int) -> Cells:
        return self.lines[line]

    def on_resize(self) -> None:
        self.lines = described(self._sections(), self.columns)
        self.changed()

    def _sections(self) -> dict[str, list[tuple[str, str]]]:
        """Under each heading, keys and what they do."""
        app = self.app
        below = app.screen_stack[-2].focused
        found: dict[str, list[tuple[str, str]]] = {}
        keymap = getattr(app, "keymap")  # noqa: B009 -- a Shell; it imports this file
        if below is not None:
            mine = [b for b in _textual.bindings_of(below) if b.key not in keymap.over_panes]
            found[MOVING] = in_pane(mine)
        for action in registry().values():
            heading = HEADINGS.get(action.group, action.group.capitalize())
            if keys := keymap.keys[action.name]:
                found.setdefault(heading, []).append((spelled(keys), action.title))
        if keymap.notes:
            found["Your keymap"] = [("", note) for note in keymap.notes]
        return found


def in_pane(bindings: Iterable[Binding]) -> list[tuple[str, str]]:
    """A line for each thing that keys do in a pane, with all its keys."""
    keys: dict[tuple[str, str], list[str]] = {}
    for binding in bindings:
        if binding.description:
            keys.setdefault((binding.action, binding.description), []).append(binding.key)
    return [(spelled(",".join(k)), what) for (_, what), k in keys.items()]


def described(sections: Mapping[str, Iterable[tuple[str, str]]], width: int) -> list[Cells]:
    """The lines of the help in so many columns; what is too long goes on below."""
    room = min(_WIDE, max(width // 3, 6))
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
