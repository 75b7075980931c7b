"""The palette: every action there is, by what it does, with its keys."""

from __future__ import annotations

from collections.abc import Mapping

from pallas_debug.tui.actions import registry, spelled
from pallas_debug.tui.help import HEADINGS

NAME = "program.palette"


def choices(keys: Mapping[str, str]) -> list[tuple[str, str]]:
    """A line for each action, and its name.

    Args:
      keys: of each action, as the user has them.
    """
    actions = [a for a in registry().values() if a.name != NAME]
    return [(_label(a.title, a.group, spelled(keys[a.name])), a.name) for a in actions]


def _label(title: str, group: str, keys: str) -> str:
    heading = HEADINGS.get(group, group).lower()
    return "  ".join(filter(None, (title, keys, f"· {heading}")))
