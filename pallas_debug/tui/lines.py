"""Lines for the panes, wherever they come from: a file of any size, or a list in memory.

A pane asks for the lines on the screen and for no more. Files are read by `ir/text.py`, whose
index is built step by step: between two steps the screen answers keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from pallas_debug.ir.text import Document, Growth

LONGEST = 10_000
"""Characters (bytes, in a file) of a line that are asked for at a time."""

STEP = 1 << 21
"""Bytes that are indexed at a time: 1 ms."""

PIECE = 1 << 22
"""Bytes of a line that are searched at a time, where it is longer."""

AGAIN = 1 << 12
"""Bytes of a part of a line that come again with the next one: a match may lie across them."""


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

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        """A part of a line, and how long the line is."""
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

    def pieces(self, line: int, size: Callable[[], int]) -> Iterator[bytes]:
        """The bytes of all lines from one on, in pieces of about `size()` that end with a line.

        A line longer than `PIECE` comes in parts, each with the last `AGAIN` bytes of that before.
        """
        ...


class DocumentLines:
    """The lines of a file.

    A file that cannot be read any more has empty lines; `grow` raises then, and so it is told.
    """

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
        with suppress(OSError):
            return self._document.line_slice(line, start, stop)
        return ""

    def length(self, line: int) -> int:
        with suppress(OSError):
            return self._document.line_size(line)
        return 0

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        with suppress(OSError):
            return self._document.line_window(line, start, stop)
        return "", 0

    def index(self) -> bool:
        with suppress(OSError):
            return self._document.index(STEP)
        return True

    def grow(self) -> Growth:
        return self._document.grow()

    def whole(self) -> Sequence[str]:
        with suppress(OSError):
            return self._document.lines(0, 1 << 62)
        return []

    def pieces(self, line: int, size: Callable[[], int]) -> Iterator[bytes]:
        with suppress(OSError):
            offset = self._document.offset(line)
            while data := self._document.chunk(offset, size(), PIECE):
                offset += len(data)
                if not data.endswith(b"\n") and offset < self._document.size:
                    offset -= min(AGAIN, len(data) // 2)
                yield data


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

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        whole = self._lines[line]
        return whole[start:stop], len(whole)

    def index(self) -> bool:
        return True

    def grow(self) -> Growth:
        return "same"

    def whole(self) -> Sequence[str]:
        return self._lines

    def pieces(self, line: int, size: Callable[[], int]) -> Iterator[bytes]:
        while line < len(self._lines):
            step = max(size() * len(self._lines) // max(self._size, 1), 1)
            part = self._lines[line : line + step]
            yield ("\n".join(part) + "\n").encode(errors="replace")
            line += step
