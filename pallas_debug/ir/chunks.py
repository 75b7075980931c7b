"""What a search does to every byte: letters become small, newlines are counted, words found.

`bytes` does the like for one byte after the other, which would take longer than all else that a
search does. StringZilla does it for as many at once as the processor's registers hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import stringzilla

_NEWLINE = b"\n"
_LOWER = bytes(range(256)).lower()

_find: Callable[[bytes | bytearray, bytes, int, int], int] = stringzilla.find
_count: Callable[[bytes | bytearray, bytes, int, int], int] = stringzilla.count


class Lower:
    """Chunks with their ASCII letters in lower case."""

    def __init__(self) -> None:
        self._lowered = bytearray()

    def __call__(self, data: bytes | bytearray, size: int) -> bytearray:
        """The first `size` bytes, and behind them anything. The next call overwrites them."""
        lowered = self._lowered  # fresh memory for each chunk would be dear
        if len(lowered) < size:
            lowered.extend(bytes(size - len(lowered)))
        with memoryview(lowered) as to, memoryview(data) as source:
            to[:size] = source[:size]
        stringzilla.translate(lowered, _LOWER, inplace=True, start=0, end=size)
        return lowered


def newlines(data: bytes | bytearray, stop: int, start: int = 0) -> int:
    """How many there are from one byte to before another."""
    return _count(data, _NEWLINE, start, stop)


def lines(
    data: bytes | bytearray, stop: int, places: list[int], line: int
) -> Iterator[tuple[int, int, int]]:
    """Of the lines that hold the places: the number, and where each begins and ends.

    Args:
      places: in order.
      line: the number of the first line.
    """
    position = 0
    for place in places:
        line += newlines(data, place, position)
        position = place
        end = _find(data, _NEWLINE, place, stop)
        yield line, data.rfind(_NEWLINE, 0, place) + 1, stop if end < 0 else end


class Literal:
    """Where some bytes stand.

    Args:
      needle: in lower case if it folds.
      folds: whether ASCII letters of either case are alike.
    """

    def __init__(self, needle: bytes, *, folds: bool) -> None:
        self._needle = needle
        self._lower = Lower() if folds else None

    def __call__(self, data: bytes | bytearray, stop: int) -> Iterator[int]:
        """Where the needle begins; it may do so again before its end."""
        seen = self._lower(data, stop) if self._lower else data
        at = _find(seen, self._needle, 0, stop)
        while at >= 0:
            yield at
            at = _find(seen, self._needle, at + 1, stop)

    def lines(self, data: bytes | bytearray, stop: int) -> int:
        """How many lines hold it; it has no newline itself."""
        seen = self._lower(data, stop) if self._lower else data
        needle, found = self._needle, 0
        at = _find(seen, needle, 0, stop)
        while at >= 0:
            found += 1
            end = _find(seen, _NEWLINE, at, stop)
            if end < 0:
                break
            at = _find(seen, needle, end, stop)
        return found
