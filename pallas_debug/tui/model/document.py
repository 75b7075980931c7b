"""Lines of a large file, read as they are drawn or searched.

The index holds one number per 4 KB: the number of newlines up to there. Bytes are decoded lazily,
and invalid UTF-8 becomes U+FFFD. A file is shown as it was opened, even if it is deleted or
replaced. It is read, not mapped: if a mapped file is truncated, SIGBUS ends the process.
"""

from __future__ import annotations

import bisect
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

_BLOCK = 1 << 12
_PIECE = 1 << 20
_MAX_LINE = 40_000
"""Maximum number of bytes of a line to read."""


class Document(Sequence[str]):
    """Lines of a file, each cut to `_MAX_LINE` bytes. Only a newline ends a line.

    Args:
      file: descriptor, which is closed with the document.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._newlines = array("Q")  # up to the end of each block
        count = self.size = 0
        last = b"\n"
        while data := os.pread(file, _PIECE, self.size):
            for start in range(0, len(data), _BLOCK):
                count += data.count(b"\n", start, start + _BLOCK)
                self._newlines.append(count)
            self.size += len(data)
            last = data[-1:]
        self._count = count + (last != b"\n")

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
        data = os.pread(self._file, _BLOCK, block * _BLOCK)
        at = -1
        for _ in range(line - (self._newlines[block - 1] if block else 0)):
            at = data.find(b"\n", at + 1)
            if at < 0:  # truncated meanwhile
                return self.size
        return block * _BLOCK + at + 1

    def pieces(self) -> Iterator[bytes]:
        """Yield the file in pieces of whole lines, but for parts of a very long line."""
        offset = 0
        while data := os.pread(self._file, _PIECE, offset):
            piece = data[: data.rfind(b"\n") + 1] or data
            yield piece
            offset += len(piece)
