"""Chains of Python lines behind a module's locations, resolved through aliases.

jax names a location twice: on the outside after the operation or name stack (`"mul:"(…)`), and
around the file after the Python function. The name next to the file is the function's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pallas_debug.ir.locations import unescape
from pallas_debug.model import SourceLine

_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)\s*$")
_TOKEN = re.compile(
    r'"(?P<string>(?:[^"\\]|\\.)*)"(?:(?P<opens>\()|:(?P<line>\d{1,9}):\d+(?: to (?:\d+)?:\d+)?)?'
    r"|(?P<alias>#loc\d*)"
)
_DEEPEST = 200


class Chains:
    """Lazily resolved location aliases of a module."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._bodies = dict(_aliases(lines))
        self._known: dict[tuple[str, str | None], tuple[SourceLine, ...]] = {}

    def resolve(self, body: str) -> tuple[SourceLine, ...]:
        """Return the Python lines in the body of a `loc(…)`, callee first."""
        return self._resolve(body, None, ())

    def without_aliases(self, body: str) -> str:
        """Expand a location's aliases, so that it can be compared across modules."""
        return self._expanded(body, ())

    def _resolve(
        self, body: str, function: str | None, within: tuple[str, ...]
    ) -> tuple[SourceLine, ...]:
        known = self._known.get((body, function))
        if known is not None:
            return known
        found: list[SourceLine] = []
        name = function
        for token in _TOKEN.finditer(body):
            if token["line"]:
                file = unescape(token["string"])
                found.append(SourceLine(file=file, line=int(token["line"]), function=name))
                name = None
            elif token["opens"]:
                name = unescape(token["string"])
            elif token["alias"]:
                alias = token["alias"]
                if alias in self._bodies and alias not in within and len(within) < _DEEPEST:
                    found += self._resolve(self._bodies[alias], name, (*within, alias))
                name = None
        lines = tuple(dict.fromkeys(found))
        self._known[body, function] = lines
        return lines

    def _expanded(self, body: str, within: tuple[str, ...]) -> str:
        def replaced(token: re.Match[str]) -> str:
            alias = token["alias"]
            if not alias or alias not in self._bodies or alias in within:
                return token[0]
            if len(within) >= _DEEPEST:
                return token[0]
            return self._expanded(self._bodies[alias], (*within, alias))

        return _TOKEN.sub(replaced, body)


def _aliases(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in lines:
        if text.startswith("#loc") and (found := _ALIAS.match(text)):
            yield found[1], found[2]
