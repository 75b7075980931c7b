"""What a search does to every byte, many bytes at a time.

`bytes.lower`, `bytes.find` and `bytes.count` look at one byte after the other, which takes longer
than all else that a search does. numpy has the like as operations that the processor does on 32
bytes at once. To import it takes as long as to search some megabytes without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

WITHOUT = 8_000_000
"""Bytes that are worth searching without numpy, if it has to be imported."""

SMALL = 4096
"""Bytes for which a call of numpy takes longer than what it saves."""

_NEWLINE = b"\n"
_A, _LETTERS, _LOWER = ord("A"), 26, 0x20


class _Numpy:
    module: ModuleType | None = None


def load() -> None:
    """Import numpy: from now on it is used.

    Never done by the way, as whoever searches may be interrupted, and an import must not be.
    """
    import numpy

    _Numpy.module = numpy


def _numpy() -> ModuleType:
    assert _Numpy.module is not None
    return _Numpy.module


class _Worth:
    """Whether numpy is worth it; what it needs from chunk to chunk, as fresh memory is dear."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def it(self, size: int) -> bool:
        return size >= SMALL and _Numpy.module is not None

    def array(self, name: str, size: int, kind: str) -> Any:
        """An array that holds anything."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            kept = self._kept[name] = _numpy().empty(size, kind)
        return kept[:size]


class Lower:
    """Chunks with their ASCII letters in lower case."""

    def __init__(self) -> None:
        self._worth = _Worth()
        self._lowered = bytearray()

    def __call__(self, data: bytes | bytearray, size: int) -> bytes | bytearray:
        """The first `size` bytes. What is returned is overwritten by the next call."""
        if not self._worth.it(size):
            return data[:size].lower()
        np = _numpy()
        lowered = self._lowered
        if len(lowered) < size:
            lowered.extend(bytes(size - len(lowered)))
        del lowered[size:]
        mask = self._worth.array("mask", size, "bool")
        source, target = np.frombuffer(data, np.uint8, size), np.frombuffer(lowered, np.uint8)
        # A letter is less than 26 behind A; what is before A is far behind it, without a sign.
        np.subtract(source, np.uint8(_A), out=target)
        np.less(target, np.uint8(_LETTERS), out=mask)
        np.multiply(mask.view(np.uint8), np.uint8(_LOWER), out=target)
        np.bitwise_or(source, target, out=target)
        return lowered


class Newlines:
    """How many newlines there are, and where the lines between them."""

    def __init__(self) -> None:
        self._worth = _Worth()

    def __call__(self, data: bytes | bytearray, stop: int) -> int:
        """Before one byte."""
        if not self._worth.it(stop):
            return data.count(_NEWLINE, 0, stop)
        return int(_numpy().count_nonzero(self._equal(data, stop)))

    def lines(
        self, data: bytes | bytearray, stop: int, places: list[int], first: int
    ) -> Iterable[tuple[int, int, int]]:
        """Of the lines that hold the places: the number, and where each begins and ends.

        Args:
          places: in order.
          first: the number of the first line.
        """
        if not self._worth.it(stop):
            return self._one_by_one(data, stop, places, first)
        np = _numpy()
        ends = np.flatnonzero(self._equal(data, stop))
        if not len(ends) or ends[-1] != stop - 1:
            ends = np.append(ends, stop)
        lines = np.searchsorted(ends, places)
        begins = np.where(lines > 0, ends[lines - 1] + 1, 0)
        return zip((lines + first).tolist(), begins.tolist(), ends[lines].tolist(), strict=True)

    def _equal(self, data: bytes | bytearray, stop: int) -> Any:
        np = _numpy()
        found = self._worth.array("found", stop, "bool")
        return np.equal(np.frombuffer(data, np.uint8, stop), np.uint8(_NEWLINE[0]), out=found)

    @staticmethod
    def _one_by_one(
        data: bytes | bytearray, stop: int, places: list[int], line: int
    ) -> Iterator[tuple[int, int, int]]:
        position = 0
        for place in places:
            line += data.count(_NEWLINE, position, place)
            position = place
            end = data.find(_NEWLINE, place, stop)
            yield line, data.rfind(_NEWLINE, 0, place) + 1, stop if end < 0 else end


class Literal:
    """Where some bytes stand: looked for by a few of them, and then compared.

    Of a needle that is long enough, wherever it stands, a word of some bytes lies on a multiple of
    its width: one of as many words as that has bytes. Those are looked for, a word at a time.

    Args:
      needle: in lower case if it folds.
      folds: whether ASCII letters of either case are alike.
    """

    def __init__(self, needle: bytes, *, folds: bool) -> None:
        self._needle = needle
        self._folds = folds
        self._worth = _Worth()
        self._width = next(w for w in _WIDTHS if len(needle) >= 2 * w - 1)
        self._looked_for: _LookedFor | None = None

    def __call__(self, data: bytes | bytearray, stop: int) -> Iterable[int]:
        """Where the needle begins; it may do so again before its end."""
        if self._worth.it(stop):
            return self._places(data, stop)
        return self._one_by_one(data[:stop].lower() if self._folds else data, stop)

    def lines(self, data: bytes | bytearray, stop: int) -> int:
        """How many lines hold it."""
        find = data.find
        found, end = 0, -1
        for at in self(data, stop):
            if at > end:
                found += 1
                end = find(_NEWLINE, at, stop)
                if end < 0:
                    break
        return found

    def _one_by_one(self, data: bytes | bytearray, stop: int) -> Iterator[int]:
        position = data.find(self._needle, 0, stop)
        while position >= 0:
            yield position
            position = data.find(self._needle, position + 1, stop)

    def _places(self, data: bytes | bytearray, stop: int) -> list[int]:
        np = _numpy()
        if self._looked_for is None:
            first = self._rarest(data, stop)
            self._looked_for = _LookedFor(self._needle, self._folds, first, self._width)
        needle, width = self._looked_for, self._width
        raw = looked_at = np.frombuffer(data, np.uint8, stop)
        if self._folds:
            # Not quite lower case, but for letters: `[` becomes `{`, in the needle too. Hence all
            # is compared in the end.
            low = self._worth.array("low", stop, "uint8")
            looked_at = np.bitwise_or(raw, np.uint8(_LOWER), out=low)
        words = looked_at[: stop - stop % width].view(needle.words.dtype)
        marked = np.flatnonzero(self._marked(words, needle.words))
        if not len(marked):
            return []
        # Which words they are tells where the needle begins, if it does.
        at, which = np.nonzero(words[marked, None] == needle.words)
        places = marked[at] * width - (which + needle.first)
        places = places[(places >= 0) & (places <= stop - len(self._needle))]
        places.sort()
        return needle.at(raw, places)

    def _marked(self, words: Any, looked_for: Any) -> Any:
        """For each word whether it is one of those that are looked for."""
        np = _numpy()
        marked = self._worth.array("marked", len(words), "bool")
        other = self._worth.array("other", len(words), "bool")
        np.equal(words, looked_for[0], out=marked)
        for word in looked_for[1:]:
            np.equal(words, word, out=other)
            np.bitwise_or(marked, other, out=marked)
        return marked

    def _rarest(self, data: bytes | bytearray, stop: int) -> int:
        """From where on the needle has words of which there are the fewest in the data."""
        seen = data[:stop].lower()
        width = self._width
        places = min(len(self._needle) - width, _TRIED) + 1
        counts = [seen.count(self._needle[i : i + width]) for i in range(places)]
        return min(range(places - width + 1), key=lambda i: sum(counts[i : i + width]))


class _LookedFor:
    """A needle as numpy sees it.

    Attributes:
      first: where in the needle its first word stands.
      words: as many as each has bytes; with the bit of letters' case set, if it folds.
    """

    def __init__(self, needle: bytes, folds: bool, first: int, width: int) -> None:
        np = _numpy()
        self._bytes = looked_at = np.frombuffer(needle, np.uint8)
        self._case = np.zeros(len(needle), np.uint8)
        if folds:
            looked_at = self._bytes | np.uint8(_LOWER)
            self._case[np.frombuffer(needle.upper(), np.uint8) != self._bytes] = _LOWER
        self.first = first
        spelled = b"".join(looked_at[i : i + width].tobytes() for i in range(first, first + width))
        self.words = np.frombuffer(spelled, f"<u{width}")

    def at(self, data: Any, places: Any) -> list[int]:
        """Those of the places at which it really stands."""
        np = _numpy()
        found: list[int] = []
        size = len(self._bytes)
        step = max(_COMPARED // size, 1)
        for start in range(0, len(places), step):
            some = places[start : start + step]
            there = data[some[:, None] + np.arange(size)] | self._case
            found += some[(there == self._bytes).all(axis=1)].tolist()
        return found


_WIDTHS = 4, 2, 1
"""Bytes of a word."""

_TRIED = 32
"""Bytes of a needle at which its first word may stand: each costs a look at the first chunk."""

_COMPARED = 1 << 16
"""Bytes that are compared at a time."""
