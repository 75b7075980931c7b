"""Line access to texts and files of any size.

The index holds one number per 64 KB of the file: the number of newlines up to its end. For 200 MB
it takes 25 KB, even if the file is a single line or consists of newlines, and the caller chooses
the step size. Bytes are decoded lazily, and invalid UTF-8 becomes U+FFFD. Files are read, not
mapped: if a mapped file is truncated while it is shown, SIGBUS ends the process.
"""

from __future__ import annotations

import bisect
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.search import open_regular

BLOCK = 1 << 16
"""Number of bytes per entry of the index."""

STEP = 1 << 22
"""Default number of bytes that a call of `index` reads: about 2 ms."""

_CACHED_BLOCKS = 8

Growth = Literal["same", "grown", "replaced", "gone"]


class Document:
    """Lines of a file, indexed as far as needed.

    Only a newline ends a line; carriage returns and form feeds are part of it. Line numbers count
    from 0.
    """

    def __init__(self, source: _File) -> None:
        self._source = source
        self._ends = array("Q")  # cumulative newline counts per block
        self._indexed = 0
        self._size = source.size()
        self._cache: OrderedDict[int, array[int]] = OrderedDict()
        self._count: int | None = None  # number of lines, once everything is indexed

    @classmethod
    def open(cls, path: str | Path, opened: Callable[[], int] | None = None) -> Document:
        """Open a file as a document.

        Args:
          opened: opens the file, and reopens it after it was replaced; returns a descriptor, or
            raises `OSError` or `PallasDebugError`.

        Raises:
          OSError, PallasDebugError: the file cannot be opened.
        """
        path = Path(path)
        opened = opened or partial(open_regular, path)
        return cls(_File(path, opened))

    @property
    def size(self) -> int:
        """Size in bytes, as of the last `grow`."""
        return self._size

    @property
    def indexed(self) -> int:
        """Number of bytes indexed so far."""
        return self._indexed

    @property
    def complete(self) -> bool:
        return self._indexed >= self._size

    @property
    def line_count(self) -> int:
        """Number of known lines; a last line without a newline counts once all is indexed."""
        if self._count is None:
            if not self.complete:
                return self._newlines
            self._count = self._newlines + (self._size > 0 and self._last_end != self._size)
        return self._count

    def index(self, budget: int = STEP) -> bool:
        """Index up to `budget` more bytes; return whether everything is indexed."""
        goal = min(self._size, self._indexed + max(budget, BLOCK))
        newlines = self._newlines
        while self._indexed < goal:
            block = self._source.read(self._indexed, BLOCK)
            if not block:  # truncated meanwhile; `grow` reports it
                self._size = self._indexed
                break
            newlines += block.count(b"\n")
            self._ends.append(newlines)
            self._indexed += len(block)
            # A short block is the end; bytes written since the last `grow` count too.
            self._size = self._indexed if len(block) < BLOCK else max(self._size, self._indexed)
        return self.complete

    def lines(self, start: int, stop: int, *, limit: int | None = None) -> list[str]:
        """Return the existing lines from `start` to before `stop`, without newlines.

        Args:
          start: number of the first line, from 0.
          stop: the index is extended as needed to reach it.
          limit: maximum bytes of a line; the rest is cut, see `line_size`.
        """
        start = max(start, 0)
        self._index_to(stop)
        stop = min(stop, self.line_count)
        if start >= stop:
            return []
        begin, end = self.offset(start), self.offset(stop)
        if limit is None or end - begin <= limit:
            data = self._source.read(begin, end - begin)
            return data.removesuffix(b"\n").decode(errors="replace").split("\n")
        return [self.line_slice(number, 0, limit) for number in range(start, stop)]

    def line_size(self, number: int) -> int:
        """Bytes of a line without its newline."""
        begin, end = self._span(number)
        return end - begin

    def line_slice(self, number: int, start: int, stop: int) -> str:
        """Decode bytes `start` to `stop` of a line, e.g. a window on a huge line."""
        return self.line_window(number, start, stop)[0]

    def line_window(self, number: int, start: int, stop: int) -> tuple[str, int]:
        """Return the results of `line_slice` and `line_size` together."""
        begin, end = self._span(number)
        first, last = begin + max(start, 0), min(end, begin + stop)
        text = self._source.read(first, max(last - first, 0)).decode(errors="replace")
        return text, end - begin

    def offset(self, number: int) -> int:
        """Offset of a line's first byte; the document's end for the line after the last."""
        self._index_to(number)
        if number <= 0:
            return 0
        if number > self._newlines:
            return self._size
        block = bisect.bisect_left(self._ends, number)
        before = self._ends[block - 1] if block else 0
        return block * BLOCK + self._newlines_of(block)[number - before - 1] + 1

    def chunk(self, offset: int, size: int, longest: int) -> bytes:
        """Read about `size` bytes of whole lines, starting at a line; empty at the end.

        Args:
          longest: maximum bytes of a line; longer ones come in parts.
        """
        while True:
            data = self._source.read(offset, size)
            if len(data) < size:
                return data
            end = data.rfind(b"\n") + 1
            if end or size >= longest:
                return data[:end] if end else data
            size = min(4 * size, longest)

    def grow(self) -> Growth:
        """Check the file for changes. Keeps the index unless the file was replaced or truncated.

        A deleted file can still be read.
        """
        state = self._source.refresh()
        size = self._source.size()
        if state == "replaced" or size < self._size:
            self._forget(0)
            self._size = size
            return "replaced"
        if state == "gone" or size == self._size:
            return "gone" if state == "gone" else "same"
        self._forget(self._indexed // BLOCK)  # the last block may have been incomplete
        self._size = size
        return "grown"

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _newlines(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def _last_end(self) -> int:
        """End of the last complete line."""
        return self.offset(self._newlines)

    def _index_to(self, number: int) -> None:
        while self._newlines < number and not self.index():
            pass

    def _span(self, number: int) -> tuple[int, int]:
        begin, end = self.offset(number), self.offset(number + 1)
        ended = end > begin and (number < self._newlines)
        return begin, end - ended

    def _newlines_of(self, block: int) -> array[int]:
        """Positions of the newlines in a block; the most recent blocks are cached."""
        known = self._cache.get(block)
        if known is None:
            data = self._source.read(block * BLOCK, BLOCK)
            known = array("I", _positions(data))
            # A file that was truncated meanwhile has fewer newlines than counted: pad with its end.
            before = self._ends[block - 1] if block else 0
            known.extend([len(data)] * max(0, self._ends[block] - before - len(known)))
            self._cache[block] = known
            if len(self._cache) > _CACHED_BLOCKS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(block)
        return known

    def _forget(self, blocks: int) -> None:
        """Drop the index after the first `blocks` blocks."""
        del self._ends[blocks:]
        self._indexed = min(self._indexed, blocks * BLOCK)
        self._cache.clear()
        self._count = None


def _positions(data: bytes) -> list[int]:
    found = []
    position = data.find(b"\n")
    while position >= 0:
        found.append(position)
        position = data.find(b"\n", position + 1)
    return found


class _File:
    def __init__(self, path: Path, opened: Callable[[], int]) -> None:
        self._fd = -1
        self._path = path
        self._opened = opened
        self._fd = opened()

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, count: int) -> bytes:
        chunks = []
        while count > 0:
            chunk = os.pread(self._fd, count, offset)  # at most 2 GB at a time
            if not chunk:
                break
            chunks.append(chunk)
            offset, count = offset + len(chunk), count - len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def refresh(self) -> Literal["same", "replaced", "gone"]:
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return "same"
            fd = self._opened()
        except (OSError, PallasDebugError):
            return "gone"
        os.close(self._fd)
        self._fd = fd
        return "replaced"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()
