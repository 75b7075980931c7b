"""Modal screens: lists to choose from, and the help."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from pallas_debug.tui import _textual
from pallas_debug.tui.keys import FOOTER, HEADINGS, MOVING, Action, display_keys
from pallas_debug.tui.widgets.cells import Cells, fitted, marked, visible
from pallas_debug.tui.widgets.choices import Choice, RankedMatch, ranked
from pallas_debug.tui.widgets.lineview import LineView
from pallas_debug.tui.widgets.lists import LineList

T = TypeVar("T")

Section = list[tuple[str, str]]
"""Section of the help: keys, and what they do."""

_KEY_COLUMNS = 14
"""Number of columns for keys, if there is room."""


class ResultList(LineView, can_focus=False):
    """List of a `ListScreen`, which handles the keys that move the cursor."""

    def __init__(self, draw: Callable[[int, int], Cells]) -> None:
        super().__init__()
        self._draw = draw
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def grow(self, count: int, *, keep: int | None = None) -> None:
        """Set the number of lines."""
        self._count = count
        self.changed(keep=keep)

    def cells(self, line: int) -> Cells:
        mark = "›" if line == self.cursor else " "
        return [(f"{mark} ", ""), *self._draw(line, max(self.columns - 2, 1))]

    @property
    def is_active(self) -> bool:
        return True


class ListScreen(ModalScreen[T | None], Generic[T]):
    """Modal screen with an input, a list below it, and a status line.

    Args:
      hint: placeholder of the input.
      value: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "stop", "stop, then close", show=False),
        Binding("down,ctrl+n", "move(1)", "down", show=False),
        Binding("up,ctrl+p", "move(-1)", "up", show=False),
        Binding("pagedown", "page(1)", "next page", show=False),
        Binding("pageup", "page(-1)", "previous page", show=False),
    ]

    DEFAULT_CSS = """
    ListScreen { align: center middle; }
    #results {
        width: 100%; height: 100%; background: $surface; border: round $text-primary;
        border-title-color: $text-primary;
    }
    #results Static { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; }
    #results Input {
        height: 1; border: none; padding: 0 1; background: $panel; background-tint: $panel 0%;
    }
    #results .input--placeholder { color: $text-muted; }
    #results ResultList { height: 1fr; }
    #results Preview { height: 6; border-top: hkey $border-blurred; }
    """

    def __init__(self, title: str, *, hint: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(id="results") as box:
            _textual.set_border_labels(box, visible(self._title), "")
            yield Input(self._value, placeholder=self._hint, compact=True, select_on_focus=False)
            yield ResultList(self.draw)
            yield Static(id="summary", markup=False)

    @property
    def listed(self) -> ResultList:
        return self.query_one(ResultList)

    def show_summary(self, text: str) -> None:
        self.query_one("#summary", Static).update(visible(text), layout=False)

    def action_move(self, lines: int) -> None:
        """Move the cursor, around the ends of the list."""
        listed = self.listed
        if listed.count:
            listed.cursor = (listed.cursor + lines) % listed.count

    def action_page(self, pages: float) -> None:
        self.listed.action_page(pages)

    def action_stop(self) -> None:
        """Close the screen; subclasses first stop running work."""
        self.dismiss()

    @on(Input.Submitted)
    def _open_current(self) -> None:
        if self.listed.count:
            self.open(self.listed.cursor)

    # For subclasses.

    def draw(self, line: int, width: int) -> Cells:
        """Return the parts of a line."""
        raise NotImplementedError

    def open(self, line: int) -> None:
        """Close the screen, and use a line."""
        raise NotImplementedError


class Chooser(ListScreen[T]):
    """List of choices, which typing filters and ranks. Returns the chosen value, or None.

    Args:
      at: initial cursor position.
      typed: returns choices that the typed text itself names.
    """

    DEFAULT_CSS = """
    Chooser #results { width: 120; max-width: 100%; height: 24; max-height: 100%; }
    """

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice[T]],
        *,
        at: int = 0,
        typed: Callable[[str], list[Choice[T]]] | None = None,
    ) -> None:
        super().__init__(title, hint="letters of the name")
        self._at = at
        self._choices = choices
        self._typed = typed
        self.shown = [RankedMatch(choice) for choice in choices]

    def on_mount(self) -> None:
        self.listed.grow(len(self.shown), keep=self._at)

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        text = event.value.strip()
        named = self._typed(text) if self._typed is not None and text else []
        rest = ranked(self._choices, text) if text else map(RankedMatch, self._choices)
        self.shown = [*map(RankedMatch, named), *rest]
        self.listed.grow(len(self.shown), keep=0)
        self.show_summary("" if self.shown else "nothing matches")

    def draw(self, line: int, width: int) -> Cells:
        choice, found = self.shown[line]
        room = width - len(choice.note) - 1
        marks = [(at, at + 1, "bold underline text-accent") for at in found]
        label = marked([(fitted(choice.label, room), "")], [m for m in marks if m[1] < room])
        return [*label, (f" {choice.note}", "text-muted")]

    def open(self, line: int) -> None:
        self.dismiss(self.shown[line].choice.value)


class HelpScreen(ModalScreen[None]):
    """Help screen: keys or commands, and what they do, by heading. `/` searches in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "search", show=False),
        Binding("escape,ctrl+c", "back", "end the search, then close", show=False),
        Binding("question_mark,q", "dismiss", "close", show=False),
    ]

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    #help {
        width: 76; max-width: 100%; height: 90%; background: $surface; padding: 0 1;
        border: round $text-primary; border-title-color: $text-primary;
        border-subtitle-color: $text-muted;
    }
    #help Input {
        height: 1; border: none; padding: 0; display: none; background: $panel;
        background-tint: $panel 0%;
    }
    #help Input.asking { display: block; }
    """

    def __init__(self, sections: Mapping[str, Section]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        with Vertical(id="help") as box:
            box.border_title = "Help"
            box.border_subtitle = "/ search  esc close"
            yield HelpLines(self._sections)
            yield Input(placeholder="part of a key or of what it does", compact=True)

    def on_mount(self) -> None:
        self.query_one(HelpLines).focus()

    def action_search(self) -> None:
        self.query_one(Input).add_class("asking").focus()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        words = event.value.lower().split()
        found = {
            heading: [e for e in entries if all(word in " ".join(e).lower() for word in words)]
            for heading, entries in self._sections.items()
        }
        self.query_one(HelpLines).show_sections(
            {h: entries for h, entries in found.items() if entries}
        )

    @on(Input.Submitted)
    def _to_lines(self) -> None:
        self.query_one(HelpLines).focus()

    def action_back(self) -> None:
        typed = self.query_one(Input)
        if not typed.has_class("asking"):
            self.dismiss()
        typed.value = ""
        typed.remove_class("asking")
        self.query_one(HelpLines).focus()


class HelpLines(LineList):
    """View of the lines of the help."""

    def __init__(self, sections: Mapping[str, Section]) -> None:
        super().__init__()
        self._sections = sections

    def on_resize(self) -> None:
        self.show_sections(self._sections)

    def show_sections(self, sections: Mapping[str, Section]) -> None:
        self._sections = sections
        self.show(help_lines(sections, self.columns), cursor=0)


def moving_keys(bindings: Iterable[BindingType] = LineView.BINDINGS) -> Section:
    """Return the navigation keys of a view, by default those that all panes share."""
    keys: dict[tuple[str, str], list[str]] = {}
    for binding in Binding.make_bindings(bindings):
        keys.setdefault((binding.action, binding.description), []).append(binding.key)
    return [(display_keys(",".join(k)), what) for (_, what), k in keys.items()]


def help_sections(actions: Iterable[Action], pane: str | None) -> dict[str, Section]:
    """Return the keys and their descriptions by heading, those of a pane first."""
    groups = [pane, *(name.partition(".")[0] for name in FOOTER.get(pane or "", ()))]
    found: dict[str, Section] = {
        HEADINGS[group]: [] for group in groups if group in HEADINGS and group != "pane"
    }
    found[MOVING] = moving_keys()
    for action in actions:
        if action.keys:
            entry = (display_keys(action.keys), action.title)
            found.setdefault(HEADINGS[action.group], []).append(entry)
    return found


def help_lines(sections: Mapping[str, Section], width: int) -> list[Cells]:
    """Return the lines of the help, wrapped to a width."""
    room = min(_KEY_COLUMNS, max(width // 3, 6))
    lines: list[Cells] = []
    for heading, entries in sections.items():
        lines += [[("", "")], [(heading, "bold underline")]]
        for keys, what in entries:
            rows = textwrap.wrap(what, max(width - room - 2, 8)) or [""]
            if len(keys) > room:
                lines.append([(keys, "bold")])
                keys = ""
            for row in rows:
                lines.append([(f"{keys:>{room}}  ", "bold"), (row, "")])
                keys = ""
    return lines[1:]
