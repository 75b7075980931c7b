"""Lines of a large file, read as they are drawn or searched.

The index holds one number per 32 KB: the number of newlines up to there. It is finished in a
thread. Bytes are decoded lazily, and invalid UTF-8 becomes U+FFFD. A file is shown as it was
opened, even if it is deleted or replaced. It is read, not mapped: if a mapped file is truncated,
SIGBUS ends the process.
"""

from __future__ import annotations

import bisect
import os
import re
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

_BLOCK = 1 << 15
"""Bytes for which the index has one number."""

_PIECE = 1 << 20
"""Bytes that are read at once."""

_AT_ONCE = 1 << 23
"""Number of bytes whose lines are found at first."""

_MAX_LINE = 40_000
"""Maximum number of bytes of a line to read."""


class Document(Sequence[str]):
    """Lines of a file, each cut to `_MAX_LINE` bytes. Only a newline ends a line.

    Args:
      file: descriptor, which is closed with the document.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self.size = os.fstat(file).st_size
        self.is_whole = False
        """True once the index reaches the end of the file."""
        self._newlines = array("Q")  # up to the end of each block
        self._count = 0
        self._known: tuple[int, list[int]] = -1, []  # newlines of the latest block
        self._lock = threading.Lock()
        self.find_lines(_AT_ONCE)

    def find_lines(self, limit: int = sys.maxsize) -> None:
        """Find all lines, or those in about `limit` bytes. May be called from a thread."""
        with self._lock:
            blocks, last = self._newlines, b"\n"
            count = blocks[-1] if blocks else 0
            while len(blocks) * _BLOCK < limit and not self.is_whole:
                data = os.pread(self._file, _BLOCK, len(blocks) * _BLOCK)
                self.is_whole = len(data) < _BLOCK
                count, last = count + data.count(b"\n"), data[-1:] or last
                blocks.append(count)
                self._count = count
            self._count = max(self._count, count + (self.is_whole and last != b"\n"))

    def __del__(self) -> None:
        os.close(self._file)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, line: int) -> str: ...

    @overload
    def __getitem__(self, line: slice) -> list[str]: ...

    def __getitem__(self, line: int | slice) -> str | list[str]:
        if isinstance(line, slice):
            return [self[n] for n in range(*line.indices(len(self)))]
        if not 0 <= line < self._count:
            raise IndexError(line)
        data = os.pread(self._file, _MAX_LINE, self._offset(line))
        return data.partition(b"\n")[0].decode(errors="replace")

    def _offset(self, line: int) -> int:
        """Return the offset of the first byte of a line."""
        if line == 0:
            return 0
        block = bisect.bisect_left(self._newlines, line)
        if self._known[0] != block:
            data = os.pread(self._file, _BLOCK, block * _BLOCK)
            self._known = block, [match.start() for match in re.finditer(b"\n", data)]
        at = line - (self._newlines[block - 1] if block else 0) - 1
        ends = self._known[1]
        # A file that was truncated meanwhile has fewer newlines than counted.
        return block * _BLOCK + ends[at] + 1 if at < len(ends) else self.size

    def pieces(self) -> Iterator[bytes]:
        """Yield the file in pieces of whole lines, but for parts of a very long line."""
        offset = 0
        while data := os.pread(self._file, _PIECE, offset):
            piece = data[: data.rfind(b"\n") + 1] or data
            yield piece
            offset += len(piece)
