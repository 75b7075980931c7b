"""The user's own keys: `browse.toml` in the platform's directory for configurations.

    [keys]
    "pass.next_changed" = "ctrl+n"
    "copy.command" = ["c", "f5"]
    "target.previous" = ""

Actions are those of the registry; one with no keys is left to the palette.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pallas_debug.errors import UsageError
from pallas_debug.tui.actions import Action, key_named, spelled

MODIFIERS = ("ctrl", "shift", "alt", "meta", "super", "hyper")


@dataclass(frozen=True, kw_only=True)
class Keymap:
    """Which keys do what.

    Attributes:
      keys: of each action, as Textual spells them, joined by commas.
      over_panes: keys that the user gave to an action and that the panes have another use for;
        the user's counts.
      notes: what was taken away from an action or pane by the user's choice.
    """

    keys: Mapping[str, str]
    over_panes: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def path() -> Path:
    """The file of the user's keys; `XDG_CONFIG_HOME` is heeded."""
    import platformdirs

    return platformdirs.user_config_path("pallas-debug", appauthor=False) / "browse.toml"


def default(actions: Mapping[str, Action]) -> Keymap:
    """The keys as they are unless somebody wants others."""
    return Keymap(keys={name: found.keys for name, found in actions.items()})


def load(file: Path, actions: Mapping[str, Action], panes: Mapping[str, str]) -> Keymap:
    """The keys of a file over the default ones.

    Args:
      panes: what the panes use keys for.

    Raises:
      UsageError: the file is no keymap, or names an action or key that does not exist.
    """
    try:
        document = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return default(actions)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from error
    others = sorted(set(document) - {"keys"})
    if others:
        raise UsageError(f"{file}: there is no [{others[0]}]; there is [keys]")
    wanted = document.get("keys", {})
    if not isinstance(wanted, dict):
        raise UsageError(f"{file}: keys is a table: [keys], and below it lines as in a = 'ctrl+n'")
    chosen = {name: _keys(file, name, value, actions) for name, value in wanted.items()}
    return _combined(file, chosen, actions, panes)


def _keys(file: Path, name: str, value: object, actions: Mapping[str, Action]) -> list[str]:
    """The keys that a line of the file gives to an action."""
    if name not in actions:
        near = get_close_matches(name, actions, n=1)
        hint = f"; {near[0]!r} is near" if near else "; the palette lists all of them"
        raise UsageError(f"{file}: there is no action {name!r}{hint}")
    if isinstance(value, str):
        value = [key for key in (v.strip() for v in value.split(",")) if key]
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{file}: {name!r} wants a key or a list of keys, not {value!r}")
    return [_key(file, name, key) for key in value]


def _key(file: Path, name: str, text: str) -> str:
    """A key as Textual spells it."""
    *modifiers, base = text.split("+") if text != "+" else [text]
    known = all(m in MODIFIERS for m in modifiers)
    key = key_named(base)
    if not known or key is None:
        raise UsageError(
            f"{file}: {name!r} wants {text!r}, which is no key; keys are such as n, N, /, f5, "
            "ctrl+n, shift+up, escape, pagedown"
        )
    return "+".join([*modifiers, key])


def _combined(
    file: Path,
    chosen: Mapping[str, list[str]],
    actions: Mapping[str, Action],
    panes: Mapping[str, str],
) -> Keymap:
    """The user's keys, and the default ones that are left."""
    taken: dict[str, str] = {}
    for name, keys in chosen.items():
        for key in keys:
            if key in taken and taken[key] != name:
                both = f"{taken[key]!r} and {name!r}"
                raise UsageError(f"{file}: {spelled(key)} is given to {both}")
            taken[key] = name
    result: dict[str, str] = {}
    notes: list[str] = []
    for name, found in actions.items():
        if name in chosen:
            result[name] = ",".join(chosen[name])
            continue
        left = [key for key in _split(found.keys) if key not in taken]
        lost = [key for key in _split(found.keys) if key in taken]
        notes += [f"{spelled(key)} does {taken[key]}, no longer {name}" for key in lost]
        result[name] = ",".join(left)
    over = {key for key in taken if key in panes}
    notes += [f"{spelled(key)} does {taken[key]}, no longer: {panes[key]}" for key in sorted(over)]
    return Keymap(keys=result, over_panes=frozenset(over), notes=tuple(notes))


def _split(keys: str) -> Iterable[str]:
    return (key for key in keys.split(",") if key)
