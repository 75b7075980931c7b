"""Searching texts of any size and number: bytes read in chunks, hits and progress as they come.

Whoever iterates may stop at any time, which ends the search. A text is never held: one chunk is,
or one line where that is longer. The pattern runs over chunks and not over lines, which is what
makes it quick; a match that reaches past the end of its line is tried again on the line alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir import chunks
from pallas_debug.ir.chunks import Literal, Lower
from pallas_debug.ir.patterns import Query as Query
from pallas_debug.ir.text import open_regular

CHUNK = 1 << 18
"""Bytes read at a time, few enough to stay in the cache; the search can be stopped in between."""

LONGEST = 1 << 26
"""A line longer than this is searched in pieces, and a match across two of them is not seen."""

SHOWN = 1000
"""Bytes of a hit's line that are kept, around the match."""


class Hit(NamedTuple):
    """A line that matches, once however often it does. A tuple, as there may be thousands.

    Attributes:
      line: counted from 1.
      column: of the match, in bytes from 0.
      data: the line, or `SHOWN` bytes around the match.
      start, stop: of the match in `data`.
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
        """The text before the match, the match, and the text behind it."""
        pieces = self.data[: self.start], self.data[self.start : self.stop], self.data[self.stop :]
        before, match, after = (piece.decode(errors="replace") for piece in pieces)
        return before, match, after


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the search is: comes after each chunk, and once when a text is done.

    Attributes:
      hits: lines found in all texts so far.
      problem: why the text could not be read (to its end).
    """

    path: Path
    bytes: int
    files: int
    hits: int
    done: bool = False
    problem: str | None = None


Opened = Callable[[Path], int]
"""Opens a text: a descriptor, or an `OSError` or `PallasDebugError` that says why not."""


def search(
    paths: Iterable[Path], query: Query, *, chunk: int = CHUNK, opened: Opened = open_regular
) -> Iterator[Hit | Progress]:
    """Hits in the texts, in their order, and progress between them.

    Args:
      opened: opens each text.

    Raises:
      re.error: the query is no regular expression.
    """
    find = finder(query)
    buffer = bytearray(chunk)
    read = hits = 0
    for files, path in enumerate(paths, 1):
        problem = None
        before = 0
        try:
            for size in _chunks(opened(path), buffer):
                spans = list(find(buffer, size))
                if spans:
                    yield from _hits(path, buffer, size, before, spans)
                    hits += len(spans)
                before += chunks.newlines(buffer, size)
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
    first: bool = False,
    chunk: int = CHUNK,
    opened: Opened = open_regular,
) -> Iterator[tuple[Path, int, str | None]]:
    """For each text the number of lines that match, and why it could not be read, if so.

    Args:
      first: stop a text at its first hit, to learn whether there is one.
      opened: opens each text.
    """
    counted = counter(query)
    buffer = bytearray(chunk)
    for path in paths:
        found, problem = 0, None
        try:
            for size in _chunks(opened(path), buffer):
                found += counted(buffer, size)
                if first and found:
                    found = 1
                    break
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
        except PallasDebugError as error:
            problem = str(error)
        yield path, found, problem


Finder = Callable[[bytes | bytearray, int], Iterator[tuple[int, int]]]
"""Of data and how many bytes of it count."""


def finder(query: Query) -> Finder:
    """What finds, in whole lines, the first match of each line that has one: `(start, stop)`.

    Raises:
      re.error: the query is no regular expression.
    """
    needle, required, folds = query.needle(), query.required(), query.folds
    if needle and b"\n" not in needle:
        starts = Literal(needle, folds=folds)
        return lambda data, size: _literal(data, size, starts(data, size), len(needle))
    pattern = query.compiled()
    if required is not None:
        starts = Literal(required, folds=folds)
        return lambda data, size: _prefiltered(data, size, starts(data, size), pattern, folds)
    fold = Lower() if folds else _as_it_is
    return lambda data, size: _pattern(fold(data, size), size, pattern)


def counter(query: Query) -> Callable[[bytes | bytearray, int], int]:
    """What counts, in whole lines, those that match: as `finder` finds them, and quicker.

    Raises:
      re.error: the query is no regular expression.
    """
    needle, line = query.needle(), query.of_line()
    if needle and b"\n" not in needle:
        return Literal(needle, folds=query.folds).lines
    if query.required() is None and line is not None:
        fold = Lower() if query.folds else _as_it_is
        return lambda data, size: _count_lines(fold(data, size), size, line)
    find = finder(query)
    return lambda data, size: sum(1 for _ in find(data, size))


def _as_it_is(data: bytes | bytearray, size: int) -> bytes | bytearray:
    return data


def _without_last_newline(data: bytes | bytearray, size: int) -> int:
    return size - data.endswith(b"\n", 0, size)


def _count_lines(data: bytes | bytearray, size: int, line: re.Pattern[bytes]) -> int:
    return sum(1 for _ in line.finditer(data, 0, _without_last_newline(data, size)))


def _literal(
    data: bytes | bytearray, size: int, starts: Iterable[int], length: int
) -> Iterator[tuple[int, int]]:
    end = -1
    for start in starts:
        if start > end:
            yield start, start + length
            end = data.find(b"\n", start, size)
            if end < 0:
                return


def _prefiltered(
    data: bytes | bytearray,
    size: int,
    starts: Iterable[int],
    pattern: re.Pattern[bytes],
    folds: bool,
) -> Iterator[tuple[int, int]]:
    """Only the lines that hold what every match holds."""
    end = -1
    for at in starts:
        if at <= end:
            continue
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at, size)
        end = size if end < 0 else end
        line = data[start:end]
        found = pattern.search(line.lower() if folds else line)
        if found:
            yield start + found.start(), start + found.end()


def _pattern(
    data: bytes | bytearray, size: int, pattern: re.Pattern[bytes]
) -> Iterator[tuple[int, int]]:
    size = _without_last_newline(data, size)
    position = 0
    crossed = False
    while position <= size:
        found = None if crossed else pattern.search(data, position, size)
        if found is None and not crossed:
            return
        start = position if found is None else found.start()
        end = data.find(b"\n", start, size)
        end = size if end < 0 else end
        if found is None or found.end() > end:
            crossed = True  # it matches newlines somehow, as `(?s)` does: line by line from here
            begin = data.rfind(b"\n", 0, start) + 1
            found = pattern.search(data[begin:end])
            if found:
                yield begin + found.start(), begin + found.end()
        else:
            yield found.span()
        position = end + 1


def _chunks(file: int, buffer: bytearray) -> Iterator[int]:
    """How many bytes of the buffer are whole lines of a text, one stretch after the other.

    The descriptor is closed at the end.

    A stretch ends at a newline, but for the last one and for lines beyond `LONGEST`. One buffer
    that stays in the cache is quicker than fresh memory for each stretch; it grows with a line.
    """
    try:
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
    finally:
        os.close(file)


def _hits(
    path: Path,
    data: bytearray,
    size: int,
    before: int,
    spans: list[tuple[int, int]],
) -> list[Hit]:
    """The hits of a stretch before which there are some lines."""
    lines = chunks.lines(data, size, [start for start, _ in spans], before + 1)
    hit = Hit._make
    # All at once, and the short lines without a call of ours: there may be thousands.
    return [
        hit((path, line, start - begin, bytes(data[begin:end]), start - begin, stop - begin, False))
        if end - begin <= SHOWN
        else _cut(path, data, line, start, stop, begin, end)
        for (start, stop), (line, begin, end) in zip(spans, lines, strict=True)
    ]


def _cut(
    path: Path, data: bytearray, line: int, start: int, stop: int, begin: int, end: int
) -> Hit:
    """Of a long line what stands around the match."""
    first = max(begin, start - SHOWN // 4)
    last = min(end, first + SHOWN)
    shown = bytes(data[first:last])
    return Hit(path, line, start - begin, shown, start - first, min(stop, last) - first, True)
