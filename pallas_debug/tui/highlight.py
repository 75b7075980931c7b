"""Colours for a line of jaxpr, StableHLO, Mosaic or LLO text, by what its parts are.

One set of rules serves all stages: MLIR's spelling, jax's, LLO's and Python's differ little where
colour is of use. A line is looked at by itself, and only when it is drawn.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from pallas_debug.ir.patterns import Pattern, spans_of

Spans = list[tuple[str, str]]
"""Parts of a line, each with its kind; `""` for what is nothing in particular."""

Mark = tuple[int, int, str]
"""A part of a line from one character to before another, and its kind."""

KINDS = ("comment", "location", "string", "value", "operation", "type", "literal", "label")

_FOLDED = "loc(…)"

_RULES = re.compile(
    r"(?P<location>\bloc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\""
    r"|\((?:[^()]|\([^()]*\))*\))*\))*\))"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<comment>//.*|(?:(?<=\s)|^)#\s.*|;;|/\*(?! loc\()[^*]*\*/)"
    r"|(?P<value>%[\w$.-]+(?::\d+)?(?:#\d+)?|\^bb\d+)"
    r"|(?P<label>\$region\d+|#allocation\d+|^= control target .*|^L[HB]: .*)"
    r"|(?P<type>\b(?:tensor|vector|memref|tuple)<[^=]*?>(?=[\s,)>}]|$)|![\w.]+(?:<[^>]*>)?"
    r"|\b[a-zA-Z]+\d*\[[\d,]*\]|\b(?:[iuf]\d{1,2}|bf16|index)\b)"
    r"|(?P<operation>\b(?:[a-z_]\w*\.)+[a-z_]\w*\b|(?<== )[a-z_]\w*\b)"
    r"|(?P<literal>(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b|\b0x[0-9A-Fa-f]+\b"
    r"|\b(?:true|false|None|dense)\b)"
)


@functools.lru_cache(maxsize=1024)  # the same lines are drawn at each move of a cursor
def spans(line: str) -> Sequence[tuple[str, str]]:
    """The parts of a line."""
    parts: Spans = []
    end = 0
    for match in _RULES.finditer(line):
        parts.append((line[end : match.start()], ""))
        parts.append((match.group(), match.lastgroup or ""))
        end = match.end()
    parts.append((line[end:], ""))
    return tuple(part for part in parts if part[0])


def without_locations(parts: Iterable[tuple[str, str]]) -> Spans:
    """The parts with each location folded away, but those that something was found in."""
    return [
        (_FOLDED if kind == "location" and _is_whole(text) else text, kind) for text, kind in parts
    ]


def _is_whole(location: str) -> bool:
    return location.startswith("loc(") and location.endswith(")")


def marked(parts: Iterable[tuple[str, str]], marks: Sequence[Mark]) -> Spans:
    """The parts with others laid over them, which may go across parts. Marks are in order."""
    if not marks:
        return list(parts)
    found: Spans = []
    at = number = 0
    for text, kind in parts:
        start, stop = at, at + len(text)
        while at < stop:
            while number < len(marks) and marks[number][1] <= at:
                number += 1
            if number == len(marks) or marks[number][0] >= stop:
                found.append((text[at - start :], kind))
                at = stop
                continue
            first, last, over = marks[number]
            if first > at:
                found.append((text[at - start : first - start], kind))
            at, end = max(first, at), min(last, stop)
            found.append((text[at - start : end - start], over))
            at = end
    return found


def outside(marks: Iterable[Mark], ranges: Sequence[tuple[int, int]]) -> list[Mark]:
    """What of the marks lies in none of the ranges, which are in order."""
    found: list[Mark] = []
    for first, last, over in marks:
        for start, stop in ranges:
            if start >= last:
                break
            if first < start:
                found.append((first, start, over))
            first = max(first, stop)
        if first < last:
            found.append((first, last, over))
    return found


def hits(line: str, pattern: Pattern) -> list[Mark]:
    """Where a pattern matches, as marks."""
    return [(start, stop, "hit") for start, stop in spans_of(pattern, line)]
