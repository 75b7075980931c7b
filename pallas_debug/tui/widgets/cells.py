"""Terminal cells: sanitised text from files, measured, cut, highlighted and marked.

A dump may contain anything: escape sequences, bidirectional overrides, joiners, wide characters.
Characters that a terminal would interpret, or measure differently than we do, are replaced by
visible symbols.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.segment import Segment

Cells = list[tuple[str, str]]
"""A line in parts: each text with its style, see `theme.STYLES`; `""` for plain text."""

Mark = tuple[int, int, str]
"""Start and stop of a part of a line, in characters, and its kind."""

MAX_LINE = 10_000
"""Maximum number of characters of a line to draw."""

TAB = 8
"""Distance between tab stops in columns, as in `cat`."""

UNSEEN = "�"
"""Replacement for characters without a symbol: C1 controls, direction, joiners, surrogates."""

_PICTURES: dict[int, str] = {i: chr(0x2400 + i) for i in range(32)} | {0x7F: chr(0x2421)}
_PICTURES |= dict.fromkeys(
    (
        *range(0x80, 0xA0),
        *(0xAD, 0x61C, 0x180E),
        *range(0x200B, 0x2010),  # zero width, direction marks
        *range(0x2028, 0x202F),  # line separators, bidirectional embeddings
        *range(0x2060, 0x2070),  # joiners, bidirectional isolates
        *(*range(0xFE00, 0xFE10), 0xFEFF, *range(0xFFF9, 0xFFFC)),
        *range(0xD800, 0xE000),
        *range(0x1F3FB, 0x1F400),  # skin tones combine with the preceding character
        *range(0xE0000, 0xE0200),
    ),
    UNSEEN,
)


def visible(text: str) -> str:
    """Replace all characters that a terminal would interpret."""
    return text if text.isascii() and text.isprintable() else text.translate(_PICTURES)


def without_tabs(parts: Iterable[tuple[str, str]]) -> Cells:
    """Expand tabs to the next tab stop."""
    parts = list(parts)
    if not any("\t" in text for text, _ in parts):
        return parts
    found: Cells = []
    column = 0
    for text, kind in parts:
        pieces = []
        for number, piece in enumerate(text.split("\t")):
            if number:
                blanks = TAB - column % TAB
                pieces.append(" " * blanks)
                column += blanks
            pieces.append(piece)
            column += cells(piece)
        found.append(("".join(pieces), kind))
    return found


def between(parts: Iterable[tuple[str, str]], start: int, stop: int) -> Cells:
    """Return the cells of a line from `start` up to `stop`; blanks for half a wide character."""
    found: Cells = []
    at = 0
    for text, kind in parts:
        first, last = max(start - at, 0), max(stop - at, 0)
        if text.isascii():
            seen = text[first:last]
        else:
            whole = Segment(visible(text))
            seen = whole.split_cells(last)[0].split_cells(first)[1].text
        if seen:
            found.append((seen, kind))
        at += cells(text)
        if at >= stop:
            break
    return found


def cells(text: str) -> int:
    """Return the width of a text on the screen."""
    return len(text) if text.isascii() else cell_len(visible(text))


def plain(parts: Iterable[tuple[str, str]]) -> str:
    """Return the text of a line without styles."""
    return "".join(text for text, _ in parts)


def fitted(text: str, room: int) -> str:
    """Return a text of exactly `room` characters: cut with `…`, or padded."""
    if len(text) > room:
        return text[: max(room - 1, 0)] + "…" * (room > 0)
    return text.ljust(room)


def marked(parts: Iterable[tuple[str, str]], marks: Sequence[Mark]) -> Cells:
    """Overlay a line with marks, which must be in order and may span several parts."""
    if not marks:
        return list(parts)
    found: Cells = []
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


# Syntax highlighting: one set of rules for all stages, as the useful colours differ little between
# MLIR, jax, LLO and Python.

_RULES = re.compile(
    r"(?P<location> ?/\* loc\([^\n*]{0,4000}?\) ?\*/|  # \S[^#]*?:\d+(?::\d+)?(?: \(.*\))?$"
    r"| ?\bloc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\""
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


@functools.lru_cache(maxsize=1024)  # every cursor move draws the same lines
def spans(line: str) -> Sequence[tuple[str, str]]:
    """Return the parts of a line, each with its kind, a style of `theme.STYLES`, or `""`."""
    parts: Cells = []
    end = 0
    for match in _RULES.finditer(line):
        parts.append((line[end : match.start()], ""))
        parts.append((match.group(), match.lastgroup or ""))
        end = match.end()
    parts.append((line[end:], ""))
    return tuple(part for part in parts if part[0])


def without_locations(parts: Iterable[tuple[str, str]]) -> Cells:
    """Leave out locations, except for search hits in them."""
    return [(text, kind) for text, kind in parts if kind != "location"]
