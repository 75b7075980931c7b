"""Lines of texts, in memory or in files of any size.

A pane requests only the lines on the screen. The index of a file holds one number per 64 KB: the
number of newlines up to there. For 200 MB it takes 25 KB, even if the file is a single line or
consists of newlines, and is made in steps, so that keys are handled in between. Bytes are decoded
lazily, and invalid UTF-8 becomes U+FFFD. A file is shown as it was opened, even if it is deleted or
replaced. It is read, not mapped: if a mapped file is truncated, SIGBUS ends the process.
"""

from __future__ import annotations

import bisect
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pallas_debug.ir.search import open_regular

BLOCK = 1 << 16
"""Number of bytes per entry of the index."""

STEP = 1 << 21
"""Number of bytes that a call of `index` reads: about 1 ms."""

MAX_LINE = 10_000
"""Maximum part of a line to read at a time: bytes in a file, characters in memory."""

MAX_PIECE = 1 << 22
"""Maximum number of bytes of a long line to search at a time."""

OVERLAP = 1 << 12
"""Bytes by which two parts of a line overlap, as a match may span both."""

_CACHED_BLOCKS = 8


class Lines:
    """Lines in memory. Line numbers start at 0.

    Attributes:
      unit: unit that `text` and `length` count.
      size: total bytes.
    """

    unit = "characters"

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._lines = lines
        self.size = sum(map(len, lines)) + len(lines)

    @property
    def count(self) -> int:
        """Number of lines found so far."""
        return len(self._lines)

    @property
    def indexed(self) -> int:
        """Number of bytes whose lines have been found; equals `size` at the end."""
        return self.size

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        """Return part of a line, and the length of the line."""
        whole = self._lines[line]
        return whole[start:stop], len(whole)

    def text(self, line: int, start: int = 0, stop: int = MAX_LINE) -> str:
        """Return part of a line."""
        return self.window(line, start, stop)[0]

    def length(self, line: int) -> int:
        return self.window(line, 0, 0)[1]

    def index(self, budget: int = STEP) -> bool:
        """Find the lines in about `budget` more bytes; return whether all have been found."""
        return True

    def whole(self) -> Sequence[str]:
        """Return all lines of a small text."""
        return self._lines

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield all lines in pieces of about `size` bytes that end with a line.

        A line longer than `MAX_PIECE` is split into several parts that overlap by `OVERLAP` bytes.
        """
        step = max(size * len(self._lines) // max(self.size, 1), 1)
        for line in range(0, len(self._lines), step):
            part = self._lines[line : line + step]
            yield ("\n".join(part) + "\n").encode(errors="replace")


class Document(Lines):
    """Lines of a file, indexed as far as needed; empty once it can no longer be read.

    Only a newline ends a line; carriage returns and form feeds are part of it.

    Args:
      opened: opens the file and returns a descriptor.

    Raises:
      OSError, PallasDebugError: the file cannot be opened.
    """

    unit = "bytes"

    def __init__(self, path: Path, opened: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._fd = -1
        self._fd = (opened or partial(open_regular, path))()
        self.size = os.fstat(self._fd).st_size
        self._ends = array("Q")  # cumulative newline counts per block
        self._indexed = 0
        self._cache: OrderedDict[int, array[int]] = OrderedDict()
        self._count: int | None = None  # number of lines, once everything is indexed

    @property
    def count(self) -> int:
        """Number of known lines; a last line without a newline counts once all is indexed."""
        if self._count is None:
            if self._indexed < self.size:
                return self._newlines
            is_open = self.size > 0 and self._offset(self._newlines) != self.size
            self._count = self._newlines + is_open
        return self._count

    @property
    def indexed(self) -> int:
        return self._indexed

    def index(self, budget: int = STEP) -> bool:
        with suppress(OSError):
            self._index(budget)
            return self._indexed >= self.size
        return True

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        with suppress(OSError):
            begin, end = self._offset(line), self._offset(line + 1)
            end -= end > begin and line < self._newlines
            first, last = begin + max(start, 0), min(end, begin + stop)
            text = self._read(first, max(last - first, 0)).decode(errors="replace")
            return text, end - begin
        return "", 0

    def whole(self) -> Sequence[str]:
        with suppress(OSError):
            data = self._read(0, self.size)
            return data.removesuffix(b"\n").decode(errors="replace").split("\n") if data else []
        return []

    def pieces(self, size: int) -> Iterator[bytes]:
        offset = 0
        with suppress(OSError):
            while data := self._piece(offset, size):
                offset += len(data)
                if not data.endswith(b"\n") and offset < self.size:
                    offset -= min(OVERLAP, len(data) // 2)
                yield data

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The index.

    @property
    def _newlines(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _index(self, budget: int) -> None:
        goal = min(self.size, self._indexed + max(budget, BLOCK))
        newlines = self._newlines
        while self._indexed < goal:
            block = self._read(self._indexed, BLOCK)
            if not block:  # truncated meanwhile
                self.size = self._indexed
                break
            newlines += block.count(b"\n")
            self._ends.append(newlines)
            self._indexed += len(block)
            # A short block is the end; bytes written since the file was opened count too.
            self.size = self._indexed if len(block) < BLOCK else max(self.size, self._indexed)

    def _offset(self, line: int) -> int:
        """Offset of a line's first byte; the document's end for the line after the last."""
        while self._newlines < line and self._indexed < self.size:
            self._index(STEP)
        if line <= 0:
            return 0
        if line > self._newlines:
            return self.size
        block = bisect.bisect_left(self._ends, line)
        before = self._ends[block - 1] if block else 0
        return block * BLOCK + self._newlines_of(block)[line - before - 1] + 1

    def _newlines_of(self, block: int) -> array[int]:
        """Positions of the newlines in a block; the most recent blocks are cached."""
        known = self._cache.get(block)
        if known is None:
            data = self._read(block * BLOCK, BLOCK)
            known = array("I", _positions(data))
            # A file that was truncated meanwhile has fewer newlines than counted: pad with its end.
            before = self._ends[block - 1] if block else 0
            known.extend([len(data)] * max(0, self._ends[block] - before - len(known)))
            self._cache[block] = known
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(block)
        return known

    # The file.

    def _piece(self, offset: int, size: int) -> bytes:
        """Read about `size` bytes of whole lines, starting at a line; empty at the end."""
        while True:
            data = self._read(offset, size)
            if len(data) < size:
                return data
            end = data.rfind(b"\n") + 1
            if end or size >= MAX_PIECE:
                return data[:end] if end else data
            size = min(4 * size, MAX_PIECE)

    def _read(self, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            part = os.pread(self._fd, count, offset)  # at most 2 GB at a time
            if not part:
                break
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _positions(data: bytes) -> list[int]:
    found = []
    position = data.find(b"\n")
    while position >= 0:
        found.append(position)
        position = data.find(b"\n", position + 1)
    return found
