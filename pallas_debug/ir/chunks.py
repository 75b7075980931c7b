"""Inner loops of search: newline counting and literal matching over raw bytes.

Both use StringZilla, which uses the widest SIMD registers available. Over 200 MB, `bytes.count`
takes six times as long to count the newlines, and RE2 four times as long to count a frequent word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import stringzilla

_NEWLINE = b"\n"
_LOWER = bytes(range(256)).lower()

_find: Callable[[bytes | bytearray, bytes, int, int], int] = stringzilla.find
_count: Callable[[bytes | bytearray, bytes, int, int], int] = stringzilla.count


def newlines(data: bytes | bytearray, stop: int, start: int = 0) -> int:
    """Count newlines in `data[start:stop]`."""
    return _count(data, _NEWLINE, start, stop)


def lines(
    data: bytes | bytearray, stop: int, places: list[int], line: int
) -> Iterator[tuple[int, int, int]]:
    """Yield line number, start and end of the line that contains each place.

    Args:
      places: positions in ascending order.
      line: number of the first line of `data`.
    """
    position = 0
    for place in places:
        line += newlines(data, place, position)
        position = place
        end = _find(data, _NEWLINE, place, stop)
        yield line, data.rfind(_NEWLINE, 0, place) + 1, stop if end < 0 else end


class Literal:
    """Literal matcher that yields the first occurrence in each line of a chunk.

    Args:
      needle: text without newlines; in lower case if `folds`.
      folds: whether to ignore ASCII case.
    """

    def __init__(self, needle: bytes, *, folds: bool) -> None:
        self._needle = needle
        self._folds = folds
        self._lowered = bytearray()

    def __call__(self, data: bytes | bytearray, stop: int) -> Iterator[int]:
        seen = self._lower(data, stop) if self._folds else data
        at = _find(seen, self._needle, 0, stop)
        while at >= 0:
            yield at
            end = _find(seen, _NEWLINE, at, stop)
            if end < 0:
                return
            at = _find(seen, self._needle, end, stop)

    def _lower(self, data: bytes | bytearray, size: int) -> bytearray:
        """Shared buffer with the first `size` bytes in lower case; the rest is undefined."""
        lowered = self._lowered  # allocating one per chunk would take longer than the search
        if len(lowered) < size:
            lowered.extend(bytes(size - len(lowered)))
        with memoryview(lowered) as to, memoryview(data) as source:
            to[:size] = source[:size]
        stringzilla.translate(lowered, _LOWER, inplace=True, start=0, end=size)
        return lowered
