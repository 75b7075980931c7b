"""Registry of actions and their keys."""

from __future__ import annotations

from textual.binding import Binding

from pallas_debug.tui.app import BrowseApp, registry
from pallas_debug.tui.keys import FOOTER, bindings


def test_no_key_runs_two_actions() -> None:
    keys = [binding.key for binding in bindings()]
    assert len(keys) == len(set(keys))


def test_keys_have_their_textual_names() -> None:
    for found in registry().values():
        if found.keys:
            named = Binding.make_bindings([Binding(found.keys, found.call)])
            assert ",".join(binding.key for binding in named) == found.keys


def test_every_action_is_a_method_of_the_app() -> None:
    assert registry()
    for found in registry().values():
        assert callable(getattr(BrowseApp, f"action_{found.method}")), found.name


def test_the_bottom_line_and_the_help_name_what_there_is() -> None:
    assert {name for words in FOOTER.values() for name in words} <= {*registry()}
