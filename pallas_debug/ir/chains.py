"""Chains of Python lines behind a module's locations, resolved through aliases.

jax adds names to a location twice: outside, the operation or name stack (`"mul:"(…)`), and around
the file, the Python function. The name next to the file is the function's.

A primitive that jax lowers through others is lowered once, and called wherever it is used again:
its name then occurs twice in the stack (`"dma_start/dma_start"(callsite(… at …))`). The callee has
the line at which it was lowered, whichever line calls it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from pallas_debug.ir.locations import unescape
from pallas_debug.model import SourceLine

_AT_LOCATION = re.compile(r"\bloc\((?P<body>.*)\)")
_ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)\s*$")
_TOKEN = re.compile(
    r'"(?P<string>(?:[^"\\]|\\.)*)"(?:(?P<opens>\()|:(?P<line>\d{1,9}):\d+(?: to (?:\d+)?:\d+)?)?'
    r"|(?P<alias>#loc\d*)"
)
_REPEATED = re.compile(r"(?:^|/)(?P<name>[a-z][a-z0-9_]*)/(?P=name)$")
_CALL = "callsite("
_LEADING_ALIAS = re.compile(r"#loc\d*")
_PUNCTUATION = re.compile(r'"(?:[^"\\]|\\.)*"|[()]| at ')
_DEEPEST = 200

Lines = tuple[SourceLine, ...]


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

    def _resolve(self, body: str, function: str | None, within: tuple[str, ...]) -> Lines:
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
                if _REPEATED.search(name) and len(within) < _DEEPEST:
                    lines = self._lowered_once(name, body[token.end() :], within)
                    if lines is not None:
                        return self._keep(body, function, lines)
            elif token["alias"]:
                alias = token["alias"]
                if alias in self._bodies and alias not in within and len(within) < _DEEPEST:
                    found += self._resolve(self._bodies[alias], name, (*within, alias))
                name = None
        return self._keep(body, function, tuple(dict.fromkeys(found)))

    def _keep(self, body: str, function: str | None, lines: Lines) -> Lines:
        self._known[body, function] = lines
        return lines

    def _lowered_once(self, stack: str, body: str, within: tuple[str, ...]) -> Lines | None:
        """Lines of a primitive that was lowered once, from its caller; None if it was not.

        Callee and caller both have the whole stack of Python calls, and the two are equal at the
        first use. If their innermost functions differ, and the callee belongs to no first use, they
        may be a single stack, divided into a callee and its caller.

        Args:
          stack: names of the operations, outermost first.
          body: text that begins with the location or its alias.
        """
        outer: list[str] = []
        for _ in range(stack.count("/")):
            alias = _LEADING_ALIAS.match(body)
            body = self._bodies.get(alias[0], "") if alias is not None else body
            call = _divided(body) if body.startswith(_CALL) else None
            if call is None:
                return None
            body, caller = call
            outer.append(caller)
        callee, calling = (self._resolve(b, None, within) for b in (body, outer[-1]))
        if not callee or not calling:
            return None
        if callee[0].function != calling[0].function and body not in self._first_uses:
            return None
        found = [calling, *(self._resolve(b, None, within) for b in reversed(outer[:-1]))]
        return tuple(dict.fromkeys(line for lines in found for line in lines))

    @cached_property
    def _first_uses(self) -> frozenset[str]:
        """Locations (callee and caller) of primitives at the uses for which they were lowered."""
        calls = (_divided(body) for body in self._bodies.values() if body.startswith(_CALL))
        return frozenset(call[0] for call in calls if call is not None and call[0] == call[1])

    def _expanded(self, body: str, within: tuple[str, ...]) -> str:
        def replaced(token: re.Match[str]) -> str:
            alias = token["alias"]
            if not alias or alias not in self._bodies or alias in within:
                return token[0]
            if len(within) >= _DEEPEST:
                return token[0]
            return self._expanded(self._bodies[alias], (*within, alias))

        return _TOKEN.sub(replaced, body)


def first_source_line(message: str) -> SourceLine | None:
    """Innermost Python line of the first location in an error message, or None."""
    bodies = (found["body"] for found in _AT_LOCATION.finditer(message))
    return next((lines[0] for body in bodies if (lines := Chains(()).resolve(body))), None)


def _divided(body: str) -> tuple[str, str] | None:
    """Split `callsite(callee at caller)` into callee and caller."""
    depth, at = 0, None
    for token in _PUNCTUATION.finditer(body):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
                if depth == 0:
                    return (body[len(_CALL) : at], body[at + 4 : token.start()]) if at else None
            case " at " if depth == 1 and at is None:
                at = token.start()
    return None


def _aliases(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in lines:
        if text.startswith("#loc") and (found := _ALIAS.match(text)):
            yield found[1], found[2]
