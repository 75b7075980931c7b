"""Lines for the panes, wherever they come from: a file of any size, or a list in memory.

A pane asks for the lines on the screen and for no more. Files are read by `ir/text.py`, whose
index is built step by step: between two steps the screen answers keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pallas_debug.ir.text import STEP, Document, Growth

LONGEST = 10_000
"""Characters (bytes, in a file) of a line that are asked for at a time."""

PIECE = 1 << 24
"""Bytes of a line that are searched at a time, where it is longer."""


class Lines(Protocol):
    """What a pane draws. Line numbers count from 0."""

    @property
    def count(self) -> int:
        """Lines that are known so far."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        ...

    @property
    def indexed(self) -> int:
        """Bytes whose lines are known; as many as `size` once all are."""
        ...

    @property
    def unit(self) -> str:
        """What `text` and `length` count."""
        ...

    def text(self, line: int, start: int = 0, stop: int = LONGEST) -> str:
        """A part of a line."""
        ...

    def length(self, line: int) -> int:
        """How long a line is."""
        ...

    def index(self) -> bool:
        """Get to know some more lines, in a few milliseconds; whether all are known."""
        ...

    def grow(self) -> Growth:
        """What became of the text since it was looked at last."""
        ...

    def whole(self) -> Sequence[str]:
        """All lines. For what is known to be small."""
        ...

    def chunk(self, offset: int, size: int) -> bytes:
        """About `size` bytes from `offset` on, up to the end of a line; none at the end."""
        ...


class DocumentLines:
    """The lines of a file."""

    unit = "bytes"

    def __init__(self, document: Document) -> None:
        self._document = document

    @property
    def count(self) -> int:
        return self._document.line_count

    @property
    def size(self) -> int:
        return self._document.size

    @property
    def indexed(self) -> int:
        return self._document.indexed

    def text(self, line: int, start: int = 0, stop: int = LONGEST) -> str:
        return self._document.line_slice(line, start, stop)

    def length(self, line: int) -> int:
        return self._document.line_size(line)

    def index(self) -> bool:
        return self._document.index(STEP)

    def grow(self) -> Growth:
        return self._document.grow()

    def whole(self) -> Sequence[str]:
        return self._document.lines(0, 1 << 62)

    def chunk(self, offset: int, size: int) -> bytes:
        return self._document.chunk(offset, size, PIECE)


class ListLines:
    """Lines in memory."""

    unit = "characters"

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._size = sum(map(len, lines)) + len(lines)

    @property
    def count(self) -> int:
        return len(self._lines)

    @property
    def size(self) -> int:
        return self._size

    @property
    def indexed(self) -> int:
        return self._size

    def text(self, line: int, start: int = 0, stop: int = LONGEST) -> str:
        return self._lines[line][start:stop]

    def length(self, line: int) -> int:
        return len(self._lines[line])

    def index(self) -> bool:
        return True

    def grow(self) -> Growth:
        return "same"

    def whole(self) -> Sequence[str]:
        return self._lines

    def chunk(self, offset: int, size: int) -> bytes:
        raise NotImplementedError


def _unused() -> Iterator[None]:
    yield None
