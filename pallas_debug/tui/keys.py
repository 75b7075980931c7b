"""Registry of actions and keys: the source of bindings, help, palette and documentation.

An action is an `action_…` method of the app with the decorator `action`.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS

Method = TypeVar("Method", bound=Callable[..., Any])

HEADINGS: dict[str, str] = {
    "pane": "Panes",
    "go": "Going somewhere",
    "list": "Filtering",
    "pass": "Passes",
    "target": "Targets",
    "search": "Searching",
    "text": "The text",
    "diff": "Comparing",
    "source": "The Python source",
    "copy": "Copying",
    "output": "Files and programs",
    "runs": "Findings",
    "program": "The program",
}
"""Headings for groups of actions, in the order of the help."""

MOVING = "Moving"


@dataclass(frozen=True, kw_only=True)
class Action:
    """Action of a key or of the palette.

    Attributes:
      name: unique name, as `group.what`.
      keys: Textual's names of the keys, joined by commas; empty for the palette only.
      title: short description of the action.
      method: name of the method without `action_`.
      arguments: arguments of the method, as Textual parses them.
      priority: whether to handle the key before later ones, for actions that move the focus.
    """

    name: str
    keys: str
    title: str
    method: str
    arguments: str = ""
    priority: bool = False

    @property
    def call(self) -> str:
        """Action string that Textual runs."""
        return f"{self.method}({self.arguments})"

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]


_REGISTRY: dict[str, Action] = {}


def action(
    name: str, keys: str, title: str, *, arguments: str = "", priority: bool = False
) -> Callable[[Method], Method]:
    """Register an `action_…` method; see `Action` for the arguments."""

    def register(method: Method) -> Method:
        if name in _REGISTRY:
            raise ValueError(f"there are two actions {name}")
        if name.partition(".")[0] not in HEADINGS:
            raise ValueError(f"the action {name} belongs to no group")
        short = method.__name__.removeprefix("action_")
        _REGISTRY[name] = Action(
            name=name,
            keys=keys,
            title=title,
            method=short,
            arguments=arguments,
            priority=priority,
        )
        return method

    return register


def registry() -> Mapping[str, Action]:
    """Return all actions by name, in the order of the help, which is that of `HEADINGS`.

    They are registered when `pallas_debug.tui.app` is imported.
    """
    groups = list(HEADINGS)
    return dict(sorted(_REGISTRY.items(), key=lambda item: groups.index(item[1].group)))


def bindings() -> Iterator[Binding]:
    """Yield Textual's bindings for all actions."""
    for found in _REGISTRY.values():
        for key in _split(found.keys):
            yield Binding(key, found.call, found.title, show=False, priority=found.priority)


FOOTER: Mapping[str, Mapping[str, str]] = {
    "kernels": {
        "pane.next": "passes",
        "list.filter": "filter",
        "target.next": "target",
        "go.to": "go to",
        "runs.show": "findings",
        "search.all": "search all",
    },
    "steps": {
        "pass.grew": "grew most",
        "pass.next_changed": "next change",
        "diff.show": "diff",
        "diff.against": "compare",
        "target.next": "target",
    },
    "failure": {"pane.next": "text", "output.edit_source": "edit the source"},
    "text": {
        "search.text": "search",
        "diff.show": "diff",
        "source.show": "source",
        "text.trail": "history",
        "text.definition": "definition",
        "output.edit_text": "edit",
    },
    "diff": {
        "diff.next": "next change",
        "diff.against": "compare",
        "diff.show": "text",
    },
    "source": {
        "source.show": "close",
        "output.edit_source": "edit",
        "copy.line": "copy",
    },
}
"""Most useful actions of each pane, with the word that the bottom line has for them."""


def footer(pane: str | None) -> list[tuple[str, str]]:
    """Return the keys for the bottom line while a pane has the focus, most useful first."""
    words = FOOTER.get(pane or "", {})
    return [(display_keys(_REGISTRY[name].keys).split()[0], word) for name, word in words.items()]


# Names of keys.


def display_keys(keys: str) -> str:
    """Format keys for display, such as `space pgdn`."""
    return " ".join(_display_key(key) for key in _split(keys))


def _display_key(key: str) -> str:
    *modifiers, base = key.split("+")
    return "+".join([*modifiers, _SHORT.get(base) or _PUNCTUATION.get(base, base)])


def _name(character: str) -> str:
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def _split(keys: str) -> Iterator[str]:
    return (key for key in keys.split(",") if key)


_SHORT = {"escape": "esc", "pagedown": "pgdn", "pageup": "pgup"}

_PUNCTUATION = {_name(character): character for character in string.punctuation}
