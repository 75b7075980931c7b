"""What stands in the cells of a terminal: texts from files made harmless, measured, and cut.

A dump may hold anything: escape sequences, characters that turn the direction of writing around or
glue others together, wide ones. What would be obeyed, or would make a terminal and us count cells
differently, is shown as a picture of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len, get_character_cell_size

Cells = list[tuple[str, str]]
"""A line: texts with the name of a component class each, `""` for plain text."""

TAB = 8
"""Columns from one tab stop to the next, as `cat` shows them."""

UNSEEN = "�"
"""Stands for what has no picture: controls of 8 bits, of direction, of joining; half pairs."""

_TABLE: dict[int, str] = {i: chr(0x2400 + i) for i in range(32)} | {0x7F: chr(0x2421)}
_TABLE |= dict.fromkeys(
    (
        *range(0x80, 0xA0),
        *(0xAD, 0x61C, 0x180E),
        *range(0x200B, 0x2010),  # of no width, and marks of direction
        *range(0x2028, 0x202F),  # separators of lines; embeddings of direction
        *range(0x2060, 0x2070),  # joiners; isolates of direction
        *(*range(0xFE00, 0xFE10), 0xFEFF, *range(0xFFF9, 0xFFFC)),
        *range(0xD800, 0xE000),
        *range(0x1F3FB, 0x1F400),  # skin tones melt into what stands before
        *range(0xE0000, 0xE0200),
    ),
    UNSEEN,
)


def visible(text: str) -> str:
    """A text that no terminal obeys."""
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def without_tabs(parts: Iterable[tuple[str, str]]) -> Cells:
    """The parts of a line with each tab as the blanks up to its stop."""
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
    """What stands from one character of a line to before another."""
    found: Cells = []
    at = 0
    for text, kind in parts:
        seen = text[max(start - at, 0) : max(stop - at, 0)]
        if seen:
            found.append((seen, kind))
        at += len(text)
        if at >= stop:
            break
    return found


def cells(text: str) -> int:
    """Cells that a text takes on the screen."""
    return len(text) if text.isascii() else cell_len(visible(text))


def cuts(text: str, room: int) -> list[int]:
    """Cells at which a line is cut to rows of `room`: no character is cut in two.

    Ends with the length of the text.
    """
    found: list[int] = []
    start = at = 0
    if text.isascii():
        return [*range(room, len(text), room), len(text)]
    for character in text:
        size = get_character_cell_size(character)
        if at + size - start > room and at > start:
            found.append(at)
            start = at
        at += size
    return [*found, at]


def plain(parts: Iterable[tuple[str, str]]) -> str:
    """What a line says, without how it looks."""
    return "".join(text for text, _ in parts)
