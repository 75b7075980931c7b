"""Normal forms: lines without noise, for comparing texts.

Three kinds of noise can be removed: the numbers of SSA values (`ssa`), locations (`loc`), and the
order of attributes (`attrs`). Normal forms are meant for comparison, not for reading. They contain
no names, so they do not show whether a value is the same on both sides: `ir/values.py` tracks the
removed names.

A text has tens of thousands of names and locations, which numpy finds in one pass over all bytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallas_debug.ir.llo import LOCATION
from pallas_debug.ir.operations import LONG, Kind, Noise, closing

_IN_NAMES = bytes(c >= 0x80 or bool(re.match(rb"[\w$.-]", bytes([c]))) for c in range(256))
"""For each byte, whether it may occur in a name after the `%`; non-ASCII bytes always may."""

_WORD_OR_COMMENT = re.compile(
    rb"  # [^\n]*|(?<![\w.])([a-z]{1,6})(?=[\s,:\])}\[(]|$)", re.MULTILINE
)
_BINDER = re.compile(rb"(?<![\w.])([a-z]{1,6}):(?=[A-Za-z]\w*[\[<{])")
_KEYWORDS = frozenset((b"in", b"let", b"lambda"))
_LOCATION_OR_STRING = re.compile(r'"(?:[^"\\]|\\.)*"| loc\(')
_LLO_NUMBERED = re.compile(r"(\$region|#allocation|parent=)\d+")
_COMMENTS = {
    "jaxpr": re.compile(r"  # [^\n]*$", re.MULTILINE),
    "llo": LOCATION,
    "bundles": LOCATION,
}
"""Patterns of locations, for kinds of text that print them as comments."""


@dataclass(frozen=True, kw_only=True)
class Stripped:
    """A text without the names of values and the numbers of locations."""

    lines: Sequence[str]
    """The rest of each line, with `%` for each name. Most lines occur repeatedly."""

    names: NDArray[Any]
    """The removed names in order, as numbers that are equal for equal names."""

    counts: NDArray[Any]
    """Number of names in each line."""

    bound: NDArray[Any]
    """Whether each name is followed by `:` or ` =`, as block arguments are."""


def stripped(lines: Sequence[str], kind: Kind, ignore: Collection[Noise]) -> Stripped:
    """Remove the ignored noise that is removed most efficiently from all lines at once."""
    text = "\n".join([*lines, ""])  # one search over all lines is much faster than one per line
    if "loc" in ignore and kind in _COMMENTS:
        text = _COMMENTS[kind].sub("", text)
    found = _Text(text)
    counts, names, bound = np.zeros(len(lines), np.int64), np.zeros(0, np.uint64), np.zeros(0, bool)
    if "loc" in ignore and kind not in _COMMENTS:
        found.drop_numbers_of_locations()
    if "ssa" in ignore:
        counts, names, bound = found.drop_names(kind)
    text = found.left()
    if "ssa" in ignore and kind in ("llo", "bundles"):
        text = _LLO_NUMBERED.sub(r"\1", text)
    return Stripped(lines=text.split("\n")[:-1], names=names, counts=counts, bound=bound)


def normal_form(line: str, kind: Kind, ignore: Collection[Noise]) -> str | None:
    """Remove the remaining noise from a stripped line; None if nothing is left."""
    if "loc" in ignore and kind not in _COMMENTS:
        if kind == "mlir" and line.startswith("#loc"):
            return None
        line = line.replace(" loc(#loc)", "").replace(" loc(unknown)", "")
        if " loc(" in line:
            line = _without_inline(line)
    return sorted_attributes(line) if "attrs" in ignore else line


class _Text:
    """Bytes of a text, with a mask of those to keep; each line ends with a newline."""

    def __init__(self, text: str) -> None:
        self._raw = text.encode(errors="surrogatepass")
        padded = self._raw + b"\n" * _WIDTH
        self._data = np.frombuffer(padded, np.uint8, len(self._raw))
        # For each byte, the integer that starts there; most of these are unaligned.
        self._words = np.ndarray(len(self._raw) + 1, f"<u{_WIDTH}", padded, 0, (1,))
        self._kept = np.ones(len(self._data), bool)

    def left(self) -> str:
        """Decode the kept bytes; a character split by the name limit becomes a surrogate."""
        return self._data[self._kept].tobytes().decode(errors="surrogateescape")

    def drop_numbers_of_locations(self) -> None:
        """Strip the number of each location: `#loc1` becomes `#loc`."""
        data = self._data
        starts = np.flatnonzero(data == ord("#")) + 1
        for byte in b"loc":
            starts = starts[data[starts] == byte] + 1
        starts = starts[data[starts] - ord("0") < 10]
        self._drop(starts, self._read(starts)[0])

    def drop_names(self, kind: Kind) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Replace each name by `%`.

        Returns:
          The number of names per line, the names as numbers, and whether each is bound.
        """
        data = self._data
        if kind == "jaxpr":
            starts = self._names_in_jaxpr()
            ends, names = self._read(starts)
            self._data = self._data.copy()
            self._data[starts] = ord("%")
        else:
            starts = np.flatnonzero(data == ord("%"))
            ends, names = self._read(starts + 1)
            named = ends > starts + 1
            starts, ends, names = starts[named], ends[named], names[named]
        self._drop(starts + 1, ends)
        counts = np.diff(starts.searchsorted(np.flatnonzero(data == ord("\n"))), prepend=0)
        after = data[ends]
        assigned = data[ends + (after == ord(" "))] == ord("=")
        return counts, names, assigned | (after == ord(":"))

    def _names_in_jaxpr(self) -> NDArray[Any]:
        """Positions of words that are bound somewhere."""
        known = set(_BINDER.findall(self._raw)) - _KEYWORDS
        found = _WORD_OR_COMMENT.finditer(self._raw)
        return np.array([match.start() for match in found if match[1] in known], np.int64)

    def _drop(self, starts: NDArray[Any], ends: NDArray[Any]) -> None:
        self._kept[ranges(starts, ends)] = False

    def _read(self, starts: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the words at `starts`: their ends, and numbers that are equal for equal words.

        A word consists of bytes that may occur in a name, and is cut at the maximum length.
        """
        ends, numbers = starts.copy(), np.zeros(len(starts), np.uint64)
        masks = np.array([(1 << 8 * size) - 1 for size in range(_WIDTH + 1)], np.uint64)
        factor = np.uint64(_FACTOR)
        unknown = np.arange(len(starts))
        for _ in range(_LONGEST // _WIDTH):
            if not len(unknown):
                break
            words = self._words[ends[unknown]]
            inside = np.frombuffer(words.tobytes().translate(_IN_NAMES), bool).reshape(-1, _WIDTH)
            sizes = inside.argmin(axis=1)
            sizes[inside[:, 0] & (sizes == 0)] = _WIDTH
            # Most words are short; a short word serves as its own number.
            numbers[unknown] = numbers[unknown] * factor + (words & masks[sizes])
            ends[unknown] += sizes
            unknown = unknown[sizes == _WIDTH]
        return ends, numbers


_WIDTH = 8
"""Number of bytes of a name that are read at a time."""

_LONGEST = 4096
_FACTOR = 0x9E3779B97F4A7C15


def ranges(starts: NDArray[Any], stops: NDArray[Any]) -> NDArray[Any]:
    """Concatenate the integers of the half-open ranges from `starts` to `stops`."""
    sizes = stops - starts
    ends = sizes.cumsum()
    found: NDArray[Any] = np.arange(ends[-1] if len(ends) else 0) + (stops - ends).repeat(sizes)
    return found


@functools.lru_cache(maxsize=4096)  # successive comparisons share most lines
def sorted_attributes(line: str) -> str:
    """Sort the `name = value` pairs in each `{…}` and `<{…}>` of a line."""
    within = line[line.find("{") : line.rfind("}")]
    if "=" not in within or "," not in within or len(line) > LONG:
        return line
    return _sorted(line, 0, "", 0)[0]


def _sorted(text: str, at: int, closed_by: str, depth: int) -> tuple[str, int]:
    """Return the text from `at` to its closing bracket, with sorted parts, and where it ends."""
    parts: list[str] = []
    start = at
    part = ""
    while found := _STRUCTURE.search(text, at):
        part += text[at : found.start()]
        at = found.end()
        token = found[0]
        if token in _CLOSING and depth < _DEEPEST:
            inner, at = _sorted(text, at, _CLOSING[token], depth + 1)
            part += token + inner
        elif token == closed_by:
            return _joined([*parts, part], closed_by) + token, at
        elif token == "," and closed_by:
            parts.append(part)
            part = ""
        else:
            part += token
    if not closed_by:
        return part + text[at:], len(text)
    return text[start:], len(text)  # never closed: unchanged


def _joined(parts: list[str], closed_by: str) -> str:
    if closed_by == "}" and len(parts) > 1 and all(_ATTRIBUTE.match(part) for part in parts):
        return ", ".join(sorted(part.strip() for part in parts))
    return ",".join(parts)


_DEEPEST = 100
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\](),]')
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_ATTRIBUTE = re.compile(r"\s*[A-Za-z_][\w.$]*\s*(?:=|$)")


def _without_inline(line: str) -> str:
    """Remove inline locations from a line, except inside strings."""
    if " loc(" not in line or line.startswith("#loc"):
        return line
    kept, done = "", 0
    for found in _LOCATION_OR_STRING.finditer(line, 0, LONG):
        if found.start() >= done and found[0].startswith(" "):
            kept += line[done : found.start()]
            done = closing(line, found.end())
    return kept + line[done:]
