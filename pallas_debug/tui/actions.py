"""What the terminal UI can do, in one place: keys, help, palette and documents come from here.

An action is a function of the app, written in `commands/` beside those of its kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

Run = Callable[["BrowseApp"], Awaitable[None] | None]


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that a key, or the palette, does.

    Attributes:
      name: `group.what`, as the user's keymap spells it.
      keys: as Textual spells them, joined by commas; empty where only the palette has it.
      title: what it does, in a few words.
      ahead: acts before what is typed after it, as what moves the focus must.
    """

    name: str
    keys: str
    title: str
    run: Run
    ahead: bool = False

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    def binding(self) -> Binding:
        """The action as Textual binds it."""
        does = f"perform('{self.name}')"
        return Binding(self.keys, does, self.title, show=False, priority=self.ahead, id=self.name)


_REGISTRY: dict[str, Action] = {}


def action(name: str, keys: str, title: str, *, ahead: bool = False) -> Callable[[Run], Run]:
    """Register a function as an action; see `Action` for the arguments."""

    def register(run: Run) -> Run:
        if name in _REGISTRY:
            raise ValueError(f"there are two actions {name}")
        _REGISTRY[name] = Action(name=name, keys=keys, title=title, run=run, ahead=ahead)
        return run

    return register


def registry() -> Mapping[str, Action]:
    """All actions by name, in the order in which help lists them."""
    from pallas_debug.tui import commands  # registers them

    assert commands.__all__
    return _REGISTRY


KEY_NAMES = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "ampersand": "&",
    "vertical_line": "|",
    "escape": "esc",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
}


def spelled(keys: str) -> str:
    """Keys as a person reads them: `space pgdn`."""
    return " ".join(KEY_NAMES.get(key, key) for key in keys.split(",") if key)
