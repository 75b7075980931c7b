"""Custom key bindings: the file's syntax, and bindings that it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.errors import UsageError
from pallas_debug.tui import keys as keymap
from pallas_debug.tui.app import BrowseApp, registry
from pallas_debug.tui.keys import Action, display_keys, key_named

PANES = {"j": "down", "down": "down"}


ACTIONS = {
    name: Action(name=name, keys=keys, title=name, method=name)
    for name, keys in [("a.one", "n,f2"), ("a.two", "slash"), ("b.bare", "")]
}


def load(folder: Path, text: str | bytes) -> keymap.Keymap:
    file = folder / "browse.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return keymap.load(file, ACTIONS, PANES)


def test_without_a_file_the_keys_are_the_default_ones(tmp_path: Path) -> None:
    found = keymap.load(tmp_path / "none", ACTIONS, PANES)
    assert found == keymap.default(ACTIONS)
    assert found.keys == {"a.one": "n,f2", "a.two": "slash", "b.bare": ""}
    assert not found.notes


@pytest.mark.parametrize(
    "text, name, keys",
    [
        ('"b.bare" = "ctrl+n"', "b.bare", "ctrl+n"),
        ('"b.bare" = "f5, ctrl+shift+up"', "b.bare", "f5,ctrl+shift+up"),
        ('"b.bare" = ["?", "ctrl+]", "esc"]', "b.bare", "question_mark,ctrl+right_square_bracket,escape"),
        ('"b.bare" = [",", "+"]', "b.bare", "comma,plus"),
        ('"b.bare" = "full_stop"', "b.bare", "full_stop"),
        ('"b.bare" = "é"', "b.bare", "é"),
        ('"a.two" = ""', "a.two", ""),
    ],
)  # fmt: skip
def test_keys_are_given(tmp_path: Path, text: str, name: str, keys: str) -> None:
    assert load(tmp_path, f"[keys]\n{text}\n").keys[name] == keys


def test_what_a_key_no_longer_does_is_said(tmp_path: Path) -> None:
    found = load(tmp_path, '[keys]\n"b.bare" = "/"\n"a.two" = "j"\n')
    assert found.keys == {"a.one": "n,f2", "a.two": "j", "b.bare": "slash"}
    assert found.over_panes == {"j"}
    assert found.notes == ("j does a.two, no longer: down",)
    found = load(tmp_path, '[keys]\n"b.bare" = "f2"\n')
    assert found.keys["a.one"] == "n"
    assert found.notes == ("f2 does b.bare, no longer a.one",)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[keys\n", "is not TOML: "),
        (b"\xff", "is not TOML: "),
        ("[colors]\n", "unknown table [colors]; there is only [keys]"),
        ("keys = 3\n", "keys must be a table: [keys], then lines such as a = 'ctrl+n'"),
        ('[keys]\n"a.on" = "x"\n', "there is no action 'a.on'; did you mean 'a.one'?"),
        ('[keys]\nzzz = "x"\n', "there is no action 'zzz'; the palette lists all of them"),
        ('[keys]\n"a.one" = 3\n', "'a.one' must be a key or a list of keys, not 3"),
        (
            '[keys]\n"a.one" = "cttrl+n"\n',
            "'a.one' is given 'cttrl+n', which is not a key; keys are",
        ),
        ('[keys]\n"a.one" = "nosuchkey"\n', "'a.one' is given 'nosuchkey', which is not a key"),
        ('[keys]\n"a.one" = "x"\n"a.two" = "x"\n', "x is given to both 'a.one' and 'a.two'"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'browse.toml'}")
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        keymap.load(tmp_path, ACTIONS, PANES)


def test_every_default_key_could_be_written_in_a_file(tmp_path: Path) -> None:
    for found in registry().values():
        for key in filter(None, found.keys.split(",")):
            *modifiers, base = key.split("+")
            assert key_named(base) == base, key
            assert key_named(display_keys(base)) == base, key
            assert all(m in keymap.MODIFIERS for m in modifiers)


def test_no_key_is_given_twice() -> None:
    keys = [key for found in registry().values() for key in found.keys.split(",") if key]
    assert len(keys) == len(set(keys))


def test_every_action_is_a_method_of_the_app() -> None:
    assert registry()
    for found in registry().values():
        assert callable(getattr(BrowseApp, f"action_{found.method}")), found.name
