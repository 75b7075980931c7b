"""Colours for a line of jaxpr, StableHLO, Mosaic or LLO text, by what its parts are.

One set of rules serves all stages: MLIR's spelling, jax's and Python's differ little where colour
is of use. A line is looked at by itself, and only when it is drawn.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

Spans = list[tuple[str, str]]
"""Parts of a line, each with its kind; `""` for what is nothing in particular."""

KINDS = ("comment", "location", "string", "value", "operation", "type", "literal")

_FOLDED = "loc(…)"

_RULES = re.compile(
    r"(?P<location>\bloc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\""
    r"|\((?:[^()]|\([^()]*\))*\))*\))*\))"
    r"|(?P<string>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<comment>//.*|(?:(?<=\s)|^)#\s.*)"
    r"|(?P<value>%[\w$.-]+(?::\d+)?(?:#\d+)?|\^bb\d+)"
    r"|(?P<type>\b(?:tensor|vector|memref|tuple)<[^=]*?>(?=[\s,)>}]|$)|![\w.]+(?:<[^>]*>)?"
    r"|\b[a-zA-Z]+\d*\[[\d,]*\]|\b(?:[iuf]\d{1,2}|bf16|index)\b)"
    r"|(?P<operation>\b(?:[a-z_]\w*\.)+[a-z_]\w*\b|(?<== )[a-z_]\w*\b)"
    r"|(?P<literal>(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b|\b0x[0-9A-Fa-f]+\b"
    r"|\b(?:true|false|None|dense)\b)"
)


def spans(line: str) -> Spans:
    """The parts of a line."""
    parts: Spans = []
    end = 0
    for match in _RULES.finditer(line):
        parts.append((line[end : match.start()], ""))
        parts.append((match.group(), match.lastgroup or ""))
        end = match.end()
    parts.append((line[end:], ""))
    return [part for part in parts if part[0]]


def without_locations(parts: Iterable[tuple[str, str]]) -> Spans:
    """The parts with each location folded away."""
    return [(_FOLDED if kind == "location" else text, kind) for text, kind in parts]


def with_hits(parts: Iterable[tuple[str, str]], pattern: re.Pattern[str]) -> Spans:
    """The parts with what a search found in them set apart; a hit may go across parts."""
    parts = list(parts)
    line = "".join(text for text, _ in parts)
    hits = [match.span() for match in pattern.finditer(line) if match.end() > match.start()]
    if not hits:
        return parts
    cuts = sorted({0, len(line), *(edge for hit in hits for edge in hit), *_edges(parts)})
    result: Spans = []
    for start, stop in itertools.pairwise(cuts):
        is_hit = any(a <= start and stop <= b for a, b in hits)
        result.append((line[start:stop], "hit" if is_hit else _kind_at(parts, start)))
    return [part for part in result if part[0]]


def _edges(parts: Spans) -> list[int]:
    edges, end = [], 0
    for text, _ in parts:
        end += len(text)
        edges.append(end)
    return edges


def _kind_at(parts: Spans, position: int) -> str:
    end = 0
    for text, kind in parts:
        end += len(text)
        if position < end:
            return kind
    return ""
