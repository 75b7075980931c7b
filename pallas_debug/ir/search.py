"""Searching texts of any size and number: bytes read in chunks, hits and progress as they come.

Whoever iterates may stop at any time, which ends the search. A text is never held: one chunk is,
or one line where that is longer. The pattern runs over chunks and not over lines, which is what
makes it quick; a match that reaches past the end of its line is tried again on the line alone.
"""

from __future__ import annotations

import errno
import itertools
import operator
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.ir.patterns import Query as Query

CHUNK = 1 << 18
"""Bytes read at a time, few enough to stay in the cache; the search can be stopped in between."""

LONGEST = 1 << 26
"""A line longer than this is searched in pieces, and a match across two of them is not seen."""

_NEWLINE = ord("\n")

SHOWN = 1000
"""Bytes of a hit's line that are kept, around the match."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A line that matches, once however often it does.

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


def search(paths: Iterable[Path], query: Query, *, chunk: int = CHUNK) -> Iterator[Hit | Progress]:
    """Hits in the texts, in their order, and progress between them.

    Raises:
      re.error: the query is no regular expression.
    """
    find = finder(query)
    read = hits = 0
    for files, path in enumerate(paths, 1):
        problem = None
        before = 0
        try:
            for data in _chunks(path, chunk):
                position = newlines = 0
                for start, stop in find(data):
                    newlines += data.count(b"\n", position, start)
                    position = start
                    yield _hit(path, data, before + newlines, start, stop)
                    hits += 1
                before += newlines + data.count(b"\n", position)
                read += len(data)
                yield Progress(path=path, bytes=read, files=files - 1, hits=hits)
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
        yield Progress(path=path, bytes=read, files=files, hits=hits, done=True, problem=problem)


def count(
    paths: Iterable[Path], query: Query, *, first: bool = False, chunk: int = CHUNK
) -> Iterator[tuple[Path, int, str | None]]:
    """For each text the number of lines that match, and why it could not be read, if so.

    Args:
      first: stop a text at its first hit, for who wants to know whether there is one.
    """
    counted = counter(query)
    for path in paths:
        found, problem = 0, None
        try:
            for data in _chunks(path, chunk):
                found += counted(data)
                if first and found:
                    found = 1
                    break
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
        yield path, found, problem


Finder = Callable[[bytes | bytearray], Iterator[tuple[int, int]]]


def finder(query: Query) -> Finder:
    """What finds, in whole lines, the first match of each line that has one: `(start, stop)`.

    Raises:
      re.error: the query is no regular expression.
    """
    needle, required, folds = query.needle(), query.required(), query.folds
    if needle is not None and b"\n" not in needle:
        return lambda data: _literal(data.lower() if folds else data, needle)
    pattern = query.compiled()
    if required is not None:
        return lambda data: _prefiltered(data.lower() if folds else data, pattern, required)
    return lambda data: _pattern(data.lower() if folds else data, pattern)


def counter(query: Query) -> Callable[[bytes | bytearray], int]:
    """What counts, in whole lines, those that match: as `finder` finds them, and quicker.

    Raises:
      re.error: the query is no regular expression.
    """
    needle, required, folds = query.needle(), query.required(), query.folds
    if needle and b"\n" not in needle:
        return lambda data: _count_literal(data.lower() if folds else data, needle)
    line = query.of_line()
    if required is None and line is not None:
        return lambda data: _count_lines(data.lower() if folds else data, line)
    find = finder(query)
    return lambda data: sum(1 for _ in find(data))


def _count_literal(data: bytes | bytearray, needle: bytes) -> int:
    """What stands between two hits holds a newline, or they are on one line."""
    parts = data.split(needle)
    if len(parts) == 1:
        return 0
    return 1 + sum(map(operator.contains, parts[1:-1], itertools.repeat(_NEWLINE)))


def _count_lines(data: bytes | bytearray, line: re.Pattern[bytes]) -> int:
    return sum(1 for _ in line.finditer(data, 0, len(data) - data.endswith(b"\n")))


def _literal(data: bytes | bytearray, needle: bytes) -> Iterator[tuple[int, int]]:
    find, size = data.find, len(needle)
    position = find(needle)
    while position >= 0:
        yield position, position + size
        end = find(b"\n", position + size)
        position = find(needle, end) if end >= 0 else -1


def _prefiltered(
    data: bytes | bytearray, pattern: re.Pattern[bytes], required: bytes
) -> Iterator[tuple[int, int]]:
    """Only the lines that hold what every match holds."""
    position = data.find(required)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        found = pattern.search(data[start:end])
        if found:
            yield start + found.start(), start + found.end()
        position = data.find(required, end)


def _pattern(data: bytes | bytearray, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    size = len(data) - data.endswith(b"\n")
    position = 0
    crossed = False
    while position <= size:
        found = None if crossed else pattern.search(data, position, size)
        if found is None and not crossed:
            return
        start = position if found is None else found.start()
        end = data.find(b"\n", start)
        end = size if end < 0 else min(end, size)
        if found is None or found.end() > end:
            crossed = True  # it matches newlines somehow, as `(?s)` does: line by line from here
            begin = data.rfind(b"\n", 0, start) + 1
            found = pattern.search(data[begin:end])
            if found:
                yield begin + found.start(), begin + found.end()
        else:
            yield found.span()
        position = end + 1


def _unblocked(path: str, flags: int) -> int:
    """A pipe is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _chunks(path: Path, size: int) -> Iterator[bytearray]:
    """A text in pieces that end at a newline, but for the last and for lines beyond `LONGEST`.

    A piece is overwritten when the next one is asked for: one buffer that stays in the cache is
    quicker than fresh memory for each.
    """
    with open(path, "rb", buffering=0, opener=_unblocked) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        buffer = bytearray(size)
        held = 0
        while True:
            if held == len(buffer):
                buffer.extend(bytes(held))
            with memoryview(buffer) as view:
                read = file.readinto(view[held:]) or 0
            filled = held + read
            end = buffer.rfind(b"\n", held, filled) + 1
            if not read or (not end and filled >= LONGEST):
                end = filled
            if end:
                rest = bytes(buffer[end:filled])
                del buffer[end:]
                yield buffer
                buffer.extend(bytes(max(size, len(rest), len(buffer)) - len(buffer)))
                buffer[: len(rest)] = rest
                filled = len(rest)
            if not read:
                return
            held = filled


def _hit(path: Path, data: bytearray, line: int, start: int, stop: int) -> Hit:
    begin = data.rfind(b"\n", 0, start) + 1
    end = data.find(b"\n", start)
    end = len(data) if end < 0 else end
    first, last = begin, end
    if end - begin > SHOWN:
        first = max(begin, start - SHOWN // 4)
        last = min(end, first + SHOWN)
    return Hit(
        path=path,
        line=line + 1,
        column=start - begin,
        data=bytes(data[first:last]),
        start=start - first,
        stop=min(stop, last) - first,
        cut=(first, last) != (begin, end),
    )
