"""Registry of actions and keys: the source of bindings, help, palette and documentation.

An action is an `action_…` method of the app with the decorator `action`. The user's keymap is
`browse.toml` in the platform's configuration directory:

    [keys]
    "pass.next_changed" = "ctrl+n"
    "copy.command" = ["c", "f5"]
    "target.previous" = ""

It can do more than Textual's own keymap: assign keys to actions that have none, remove keys,
override keys of the focused pane, and report its changes.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from pallas_debug.errors import UsageError

Method = TypeVar("Method", bound=Callable[..., Any])

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
    "values": "Recorded values",
    "copy": "Copying",
    "output": "Files and programs",
    "runs": "Runs and findings",
    "program": "The program",
}
"""Headings for groups of actions, in the order of the help."""

MOVING = "Moving"

MODIFIERS = ("ctrl", "shift", "alt", "meta", "super", "hyper")


@dataclass(frozen=True, kw_only=True)
class Action:
    """Action of a key or of the palette.

    Attributes:
      name: name in the keymap, as `group.what`.
      keys: Textual's names of the default keys, joined by commas; empty for the palette only.
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
        named = ",".join(key_named(key) or key for key in _split(keys))
        short = method.__name__.removeprefix("action_")
        _REGISTRY[name] = Action(
            name=name,
            keys=named,
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


# Names of keys.


def display_keys(keys: str) -> str:
    """Format keys for display, such as `space pgdn`."""
    return " ".join(_display_key(key) for key in _split(keys))


def _display_key(key: str) -> str:
    *modifiers, base = key.split("+")
    return "+".join([*modifiers, _SHORT.get(base) or _PUNCTUATION.get(base, base)])


def key_named(text: str) -> str | None:
    """Return Textual's name of a key such as `/`, `esc` or `f5`, or None if there is no such key.

    Modifiers are not accepted.
    """
    text = next((key for key, short in _SHORT.items() if short == text), text)
    if len(text) == 1 and text.isprintable():
        return text if text.isalnum() else _name(text)
    return text if text in _KEYS or text in _PUNCTUATION else None


def _name(character: str) -> str:
    name = unicodedata.name(character, "").lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


def _split(keys: str) -> Iterator[str]:
    return (key for key in keys.split(",") if key)


_SHORT = {"escape": "esc", "pagedown": "pgdn", "pageup": "pgup"}

_PUNCTUATION = {_name(character): character for character in string.punctuation}

_KEYS = frozenset(key.value for key in Keys)


# The keymap.


@dataclass(frozen=True, kw_only=True)
class Keymap:
    """Keys of each action.

    Attributes:
      keys: Textual's names, joined by commas, by the name of the action.
      over_panes: keys that the user assigned to an action although panes use them.
      notes: messages about keys that the user's keymap took from other actions and from panes.
    """

    keys: Mapping[str, str]
    over_panes: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def has_priority(self, action: Action) -> bool:
        """Return whether a key of an action takes precedence over the focused widget."""
        return action.priority or not self.over_panes.isdisjoint(_split(self.keys[action.name]))

    def bindings(self, actions: Mapping[str, Action]) -> Iterator[Binding]:
        """Yield Textual's bindings for these actions."""
        for name, found in actions.items():
            for key in _split(self.keys[name]):
                priority = found.priority or key in self.over_panes
                yield Binding(key, found.call, found.title, show=False, priority=priority, id=name)


def path() -> Path:
    """Return the user's keymap file; honours `XDG_CONFIG_HOME`."""
    import platformdirs

    return platformdirs.user_config_path("pallas-debug", appauthor=False) / "browse.toml"


def default(actions: Mapping[str, Action]) -> Keymap:
    """Return the default keys."""
    return Keymap(keys={name: found.keys for name, found in actions.items()})


def load(file: Path, actions: Mapping[str, Action], panes: Mapping[str, str]) -> Keymap:
    """Return the default keys, overridden by those in a file.

    Args:
      panes: uses of keys by panes.

    Raises:
      UsageError: the file is not a keymap, or names an unknown action or key.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return default(actions)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    import tomllib

    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    others = sorted(set(document) - {"keys"})
    if others:
        raise UsageError(f"{file}: unknown table [{others[0]}]; there is only [keys]")
    wanted = document.get("keys", {})
    if not isinstance(wanted, dict):
        raise UsageError(f"{file}: keys must be a table: [keys], then lines such as a = 'ctrl+n'")
    chosen = {name: _keys(file, name, value, actions) for name, value in wanted.items()}
    return _combined(file, chosen, actions, panes)


def _keys(file: Path, name: str, value: object, actions: Mapping[str, Action]) -> list[str]:
    """Return the keys that a line of the file assigns to an action."""
    if name not in actions:
        near = get_close_matches(name, actions, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; the palette lists all of them"
        raise UsageError(f"{file}: there is no action {name!r}{hint}")
    if isinstance(value, str):
        value = [key for key in (v.strip() for v in value.split(",")) if key]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{file}: {name!r} must be a key or a list of keys, not {value!r}")
    return [_key(file, name, key) for key in value]


def _key(file: Path, name: str, text: str) -> str:
    """Return Textual's name of a key with modifiers."""
    *modifiers, base = text.split("+") if text != "+" else [text]
    key = key_named(base)
    if key is None or not all(m in MODIFIERS for m in modifiers):
        raise UsageError(
            f"{file}: {name!r} is given {text!r}, which is not a key; keys are n, N, /, f5, "
            "ctrl+n, shift+up, escape, pagedown and so on"
        )
    return "+".join([*modifiers, key])


def _combined(
    file: Path,
    chosen: Mapping[str, list[str]],
    actions: Mapping[str, Action],
    panes: Mapping[str, str],
) -> Keymap:
    """Combine the user's keys with the remaining default keys."""
    taken: dict[str, str] = {}
    for name, keys in chosen.items():
        for key in keys:
            if key in taken and taken[key] != name:
                both = f"{taken[key]!r} and {name!r}"
                raise UsageError(f"{file}: {display_keys(key)} is given to both {both}")
            taken[key] = name
    result: dict[str, str] = {}
    notes: list[str] = []
    for name, found in actions.items():
        if name in chosen:
            result[name] = ",".join(chosen[name])
            continue
        default_keys = list(_split(found.keys))
        lost = [key for key in default_keys if key in taken]
        notes += [f"{display_keys(key)} does {taken[key]}, no longer {name}" for key in lost]
        result[name] = ",".join(key for key in default_keys if key not in taken)
    over = {key for key in taken if key in panes}
    notes += [
        f"{display_keys(key)} does {taken[key]}, no longer: {panes[key]}" for key in sorted(over)
    ]
    return Keymap(keys=result, over_panes=frozenset(over), notes=tuple(notes))
