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

_FREQUENT = b' 2oclt1e8x3r,%a>vf<i#us.()=m0:6n\n_475pd9bh"{}k-[]g/yw+qzj@*\\;'
"""The bytes of passes of splash attention, from the most frequent on; letters without case."""


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
    """How many newlines there are."""

    def __init__(self) -> None:
        self._worth = _Worth()

    def __call__(self, data: bytes | bytearray, start: int, stop: int) -> int:
        """From one byte to before another."""
        size = stop - start
        if not self._worth.it(size):
            return data.count(_NEWLINE, start, stop)
        np = _numpy()
        found = self._worth.array("found", size, "bool")
        np.equal(np.frombuffer(data, np.uint8, size, start), np.uint8(_NEWLINE[0]), out=found)
        return int(np.count_nonzero(found))


class Literal:
    """Where some bytes stand: looked for by the rarest of them, and then compared.

    Args:
      needle: in lower case if it folds.
      folds: whether ASCII letters of either case are alike.
    """

    def __init__(self, needle: bytes, *, folds: bool) -> None:
        self._needle = needle
        self._folds = folds
        self._worth = _Worth()
        ranks = [_FREQUENT.find(needle[i : i + 1].lower()) % 256 for i in range(len(needle))]
        self._rarest = sorted(range(len(needle)), key=lambda i: -ranks[i])[:_LOOKED_FOR]

    def __call__(self, data: bytes | bytearray, stop: int) -> Iterator[int]:
        """Where the needle begins; it may do so again before its end."""
        if not self._worth.it(stop):
            return self._one_by_one(data[:stop].lower() if self._folds else data, stop)
        needle, size = self._needle, len(self._needle)
        if self._folds:
            return (at for at in self._places(data, stop) if data[at : at + size].lower() == needle)
        return (at for at in self._places(data, stop) if data.startswith(needle, at))

    def lines(self, data: bytes | bytearray, stop: int) -> int:
        """How many lines hold it."""
        needle, size, folds = self._needle, len(self._needle), self._folds
        if self._worth.it(stop):
            places: Iterable[int] = self._places(data, stop)
        else:
            data = data[:stop].lower() if folds else data
            places, folds = self._one_by_one(data, stop), False
        find = data.find
        found, end = 0, -1
        for at in places:
            if at > end:
                held = data[at : at + size]
                if held == needle or (folds and held.lower() == needle):
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
        """Where it may begin: its rarest bytes are there."""
        np = _numpy()
        needle = self._needle
        places = stop - len(needle) + 1
        if places <= 0:
            return []
        raw = low = np.frombuffer(data, np.uint8, stop)
        if self._folds:
            # Not quite lower case, but for letters: `[` becomes `{`. Hence what is no letter is
            # looked for as it is, and all is compared in the end.
            low = self._worth.array("low", stop, "uint8")
            np.bitwise_or(raw, np.uint8(_LOWER), out=low)
        mask = self._worth.array("mask", places, "bool")
        other = self._worth.array("other", places, "bool")
        for number, at in enumerate(self._rarest):
            byte = needle[at : at + 1]
            where = low if byte.isalpha() else raw
            out = other if number else mask
            np.equal(where[at : at + places], np.uint8(byte[0]), out=out)
            if number:
                np.logical_and(mask, other, out=mask)
                if np.count_nonzero(mask) < places >> _FEW:
                    break
        found: list[int] = np.flatnonzero(mask).tolist()
        return found


_LOOKED_FOR = 4
"""Bytes of the needle that are looked for at most, before all are compared."""

_FEW = 9
"""One in so many (as a power of two) places may be left for comparing."""
