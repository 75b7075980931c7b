"""The palette: every action there is, by what it does, with its keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from pallas_debug.tui.actions import Action, registry, spelled


class Actions(Provider):
    """The registry, for Textual's palette."""

    async def discover(self) -> Hits:
        for found in _actions():
            run = partial(self.app.run_action, f"perform('{found.name}')")
            yield DiscoveryHit(_label(found), run, help=found.name)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for found in _actions():
            label = _label(found)
            score = matcher.match(f"{label} {found.name}")
            if score > 0:
                run = partial(self.app.run_action, f"perform('{found.name}')")
                yield Hit(score, matcher.highlight(label), run, help=found.name)


def _actions() -> Iterator[Action]:
    return (a for a in registry().values() if a.name != "program.palette")


def _label(found: Action) -> str:
    return f"{found.title}  {spelled(found.keys)}".rstrip()
