"""What the terminal UI can do, in one place: keys, help, palette and documents come from here.

An action is a function of the app, written in `commands/` beside those of its kind.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

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

    def bindings(self, keys: str, *, over: Collection[str] = ()) -> list[Binding]:
        """The action as Textual binds it, to each of these keys.

        Args:
          over: keys that count before what the focused pane does with them.
        """
        does = f"perform('{self.name}')"
        return [
            Binding(key, does, self.title, show=False, priority=self.ahead or key in over)
            for key in keys.split(",")
            if key
        ]


_REGISTRY: dict[str, Action] = {}


def action(name: str, keys: str, title: str, *, ahead: bool = False) -> Callable[[Run], Run]:
    """Register a function as an action; see `Action` for the arguments."""

    def register(run: Run) -> Run:
        if name in _REGISTRY:
            raise ValueError(f"there are two actions {name}")
        named = ",".join(key_named(key) or key for key in keys.split(",") if key)
        _REGISTRY[name] = Action(name=name, keys=named, title=title, run=run, ahead=ahead)
        return run

    return register


def registry() -> Mapping[str, Action]:
    """All actions by name, in the order in which help lists them."""
    from pallas_debug.tui import commands  # registers them

    assert commands.__all__
    return _REGISTRY


def spelled(keys: str) -> str:
    """Keys as a person reads them: `space pgdn`."""
    return " ".join(_spelled(key) for key in keys.split(",") if key)


def _spelled(key: str) -> str:
    *modifiers, base = key.split("+")
    return "+".join([*modifiers, _SHORT.get(base) or _PUNCTUATION.get(base, base)])


def key_named(text: str) -> str | None:
    """What Textual calls a key without modifiers, such as `/`, `esc` or `f5`; None for no key."""
    text = next((key for key, short in _SHORT.items() if short == text), text)
    if len(text) == 1 and text.isprintable():
        return text if text.isalnum() else _name(text)
    return text if text in _KEYS or text in _PUNCTUATION else None


def _name(character: str) -> str:
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


_SHORT = {"escape": "esc", "pagedown": "pgdn", "pageup": "pgup"}
"""Keys that a person calls otherwise than Textual does."""

_PUNCTUATION = {_name(character): character for character in string.punctuation}

_KEYS = frozenset(key.value for key in Keys)
