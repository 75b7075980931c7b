"""Chunked search of texts of any size and number, streaming hits and progress.

The caller can stop iterating at any time, which ends the search. Memory holds one chunk, or one
line if that is longer. Patterns run over chunks rather than single lines, for speed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.patterns import Pattern
from pallas_debug.ir.patterns import Query as Query

CHUNK = 1 << 18
"""Bytes per read; fits the cache, and the search can be stopped between reads."""

LONGEST = 1 << 26
"""Maximum bytes of a line; a longer one is searched in pieces, without matches across them."""

SHOWN = 1000
"""Maximum bytes kept of a hit's line, around the match."""


class Hit(NamedTuple):
    """A matching line, however many matches it has. A tuple, because there may be thousands.

    Attributes:
      line: line number, from 1.
      column: offset of the match in bytes, from 0.
      data: the line, or `SHOWN` bytes around the match.
      start, stop: span of the match in `data`.
      cut: whether `data` is not the whole line.
    """

    path: Path
    line: int
    column: int
    data: bytes
    start: int
    stop: int
    cut: bool

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before the match, the match, and the text after it."""
        pieces = self.data[: self.start], self.data[self.start : self.stop], self.data[self.stop :]
        before, match, after = (piece.decode(errors="replace") for piece in pieces)
        return before, match, after


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """State of the search, after each chunk and at the end of each text.

    Attributes:
      hits: lines found in all texts so far.
      problem: why the text could not be read completely.
    """

    path: Path
    bytes: int
    files: int
    hits: int
    done: bool = False
    problem: str | None = None


Opened = Callable[[Path], int]
"""Opens a text: returns a descriptor, or raises `OSError` or `PallasDebugError`."""


def open_regular(path: Path) -> int:
    """Open a regular file and return its descriptor; reject pipes and devices without blocking.

    Files of a dump are opened by `store/files.py` instead.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def search(
    paths: Iterable[Path], query: Query, *, chunk: int = CHUNK, opened: Opened = open_regular
) -> Iterator[Hit | Progress]:
    """Yield hits in the order of the texts, with progress between them.

    Args:
      opened: opens each text.

    Raises:
      PatternError: the query is not a valid regular expression.
    """
    find = finder(query)
    buffer = bytearray(chunk)
    read = hits = 0
    for files, path in enumerate(paths, 1):
        problem = None
        line, known = 1, 0  # the line that begins at a known offset
        before = 0
        try:
            with _opened(path, opened) as file:
                for size in _chunks(file, buffer):
                    spans = find(buffer, size)
                    if spans:
                        line += _newlines(file, known, before)
                        found = _hits(path, buffer, size, line, spans)
                        yield from found
                        hits += len(found)
                        line = found[-1].line + buffer.count(b"\n", spans[-1][0], size)
                        known = before + size
                    before += size
                    read += size
                    yield Progress(path=path, bytes=read, files=files - 1, hits=hits)
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
        except PallasDebugError as error:
            problem = str(error)
        yield Progress(path=path, bytes=read, files=files, hits=hits, done=True, problem=problem)


def count(
    paths: Iterable[Path],
    query: Query,
    *,
    chunk: int = CHUNK,
    opened: Opened = open_regular,
) -> Iterator[tuple[Path, int, str | None]]:
    """Yield, for each text, the number of matching lines and any problem reading it.

    Args:
      opened: opens each text.
    """
    find = finder(query)
    buffer = bytearray(chunk)
    for path in paths:
        found, problem = 0, None
        try:
            with _opened(path, opened) as file:
                for size in _chunks(file, buffer):
                    found += len(find(buffer, size))
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
        except PallasDebugError as error:
            problem = str(error)
        yield path, found, problem


Finder = Callable[[bytes | bytearray, int], list[tuple[int, int]]]
"""Takes a buffer and the number of valid bytes in it."""


def finder(query: Query) -> Finder:
    """Build a function that returns `(start, stop)` of the first match in each whole line.

    Raises:
      PatternError: the query is not a valid regular expression.
    """
    return partial(_matches, query.compiled())


def _matches(pattern: Pattern, data: bytes | bytearray, size: int) -> list[tuple[int, int]]:
    size -= data.endswith(b"\n", 0, size)
    line = 0  # first byte of the first unprocessed line
    found: list[tuple[int, int]] = []
    with memoryview(data) as whole, whole[:size] as view:
        while line <= size:
            for match in pattern.finditer(view, line):
                start, stop = span = match.span()
                if start < line:  # another match in the same line: skip the rest of it
                    break
                found.append(span)
                line = data.find(b"\n", stop, size) + 1
                if not line:
                    return found
            else:
                return found
    return found


@contextlib.contextmanager
def _opened(path: Path, opened: Opened) -> Iterator[int]:
    file = opened(path)
    try:
        yield file
    finally:
        os.close(file)


def _chunks(file: int, buffer: bytearray) -> Iterator[int]:
    """Fill the buffer with whole lines and yield their size, until the end of the file.

    The last line may lack a newline, and lines beyond `LONGEST` are split. One buffer that stays in
    the cache is faster than new memory for each chunk; it grows for a long line.
    """
    held = 0
    while True:
        if held == len(buffer):
            buffer.extend(bytes(held))
        with memoryview(buffer) as view, view[held:] as free:
            read = os.readv(file, [free])
        filled = held + read
        end = buffer.rfind(b"\n", held, filled) + 1
        if not read or (not end and filled >= LONGEST):
            end = filled
        if end:
            yield end
            buffer[: filled - end] = buffer[end:filled]
        held = filled - end
        if not read:
            return


def _newlines(file: int, start: int, stop: int) -> int:
    """Count newlines in a part of a file that was searched before, and had no hits."""
    found = 0
    while start < stop and (data := os.pread(file, min(CHUNK, stop - start), start)):
        found += data.count(b"\n")
        start += len(data)
    return found


def _hits(
    path: Path,
    data: bytearray,
    size: int,
    line: int,
    spans: list[tuple[int, int]],
) -> list[Hit]:
    """Build the hits of a chunk that begins with the given line."""
    hits: list[Hit] = []
    position = 0
    for start, stop in spans:
        line += data.count(b"\n", position, start)
        position = start
        begin, end = data.rfind(b"\n", 0, start) + 1, data.find(b"\n", start, size)
        end = size if end < 0 else end
        if end - begin > SHOWN:
            hits.append(_cut(path, data, line, start, stop, begin, end))
        else:
            shown = bytes(data[begin:end])
            hits.append(Hit(path, line, start - begin, shown, start - begin, stop - begin, False))
    return hits


def _cut(
    path: Path, data: bytearray, line: int, start: int, stop: int, begin: int, end: int
) -> Hit:
    """Build a hit in a long line, with the text around the match."""
    first = max(begin, start - SHOWN // 4)
    last = min(end, first + SHOWN)
    shown = bytes(data[first:last])
    return Hit(path, line, start - begin, shown, start - first, min(stop, last) - first, True)
