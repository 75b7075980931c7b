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
      problem: why the text could not be read completely.
    """

    path: Path
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
    for path in paths:
        problems: list[str] = []
        line, known, before = 1, 0, 0  # the line that begins at a known offset
        for file, size in _chunks(path, opened, buffer, problems):
            if spans := find(buffer, size):
                line += _newlines(file, known, before)
                found = _hits(path, buffer, size, line, spans)
                yield from found
                line = found[-1].line + buffer.count(b"\n", spans[-1][0], size)
                known = before + size
            before += size
            yield Progress(path=path)
        yield Progress(path=path, done=True, problem=next(iter(problems), None))


Finder = Callable[[bytes | bytearray, int], list[tuple[int, int]]]
"""Takes a buffer and the number of valid bytes in it."""


def finder(query: Query) -> Finder:
    """Build a function that returns `(start, stop)` of the first match in each whole line.

    Raises:
      PatternError: the query is not a valid regular expression.
    """
    pattern = query.compiled()
    needle = query.needle
    if needle is None:
        return partial(_matches, pattern)
    return partial(_literals, pattern if query.folds else None, needle)


def _literals(
    ignores_case: Pattern | None, needle: bytes, data: bytes | bytearray, size: int
) -> list[tuple[int, int]]:
    if ignores_case is not None:
        # RE2 needs no lower-case copy, but is slow to find many hits.
        with memoryview(data) as whole, whole[:size] as view:
            if ignores_case.search(view) is None:
                return []
        data = data[:size].lower()
    found = []
    at = data.find(needle, 0, size)
    while at >= 0:
        found.append((at, at + len(needle)))
        end = data.find(b"\n", at, size)
        at = data.find(needle, end, size) if end >= 0 else -1
    return found


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


def _chunks(
    path: Path, opened: Opened, buffer: bytearray, problems: list[str]
) -> Iterator[tuple[int, int]]:
    """Fill the buffer with whole lines, to the end of a text; yield its descriptor and their size.

    The last line may lack a newline, and lines beyond `LONGEST` are split. One buffer that stays in
    the cache is faster than new memory for each chunk; it grows for a long line.
    """
    try:
        file = opened(path)
        try:
            held, read = 0, -1
            while read:
                if held == len(buffer):
                    buffer.extend(bytes(held))
                with memoryview(buffer) as view, view[held:] as free:
                    read = os.readv(file, [free])
                filled = held + read
                end = buffer.rfind(b"\n", held, filled) + 1
                if not read or (not end and filled >= LONGEST):
                    end = filled
                if end:
                    yield file, end
                    buffer[: filled - end] = buffer[end:filled]
                held = filled - end
        finally:
            os.close(file)
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror or error}.")
    except PallasDebugError as error:
        problems.append(str(error))


def _newlines(file: int, start: int, stop: int) -> int:
    """Count newlines in a part of a file that was searched before, and had no hits."""
    found = 0
    with contextlib.suppress(OSError):
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
