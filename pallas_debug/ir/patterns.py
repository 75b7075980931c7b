"""Search queries: literal text or regular expressions, matched by RE2 in linear time.

A compiled pattern works on chunks of many lines as well as on single lines: no match contains a
newline, and `^` and `$` match at line boundaries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pallas_debug.errors import PatternError

Text = bytes | bytearray | memoryview | str

_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LINE_ENDS = {"A": "^", "Z": "$", "z": "$"}
"""Escapes for the ends of a text, mapped to line ends: a chunk's own ends are arbitrary."""

_UNSUPPORTED = ("invalid perl operator", "invalid escape", "bad repetition", "invalid repetition")


class Match(Protocol):
    """Result of a match."""

    def span(self) -> tuple[int, int]: ...


class Pattern(Protocol):
    """The part of a compiled pattern's interface that searches use."""

    def search(self, text: Text, /) -> Match | None: ...

    def finditer(self, text: Text, pos: int = 0, /) -> Iterator[Match]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """Pattern of a search.

    Attributes:
      text: a regular expression in RE2 syntax, or literal text.
      ignore_case: None for smart case: case is ignored unless the text has a capital letter.
    """

    text: str
    literal: bool = False
    ignore_case: bool | None = False

    @property
    def folds(self) -> bool:
        """True if case is ignored."""
        if self.ignore_case is None:
            letters = self.text if self.literal else _ESCAPE.sub("", self.text)
            return not any(c.isupper() for c in letters)
        return self.ignore_case

    def compiled(self) -> Pattern:
        """Compile the pattern, for UTF-8 bytes and for `str`.

        Raises:
          PatternError: the text is not a valid regular expression, or RE2 does not support it.
        """
        import re2  # lazy: a browser starts without it

        options = re2.Options()
        options.never_nl = True
        options.never_capture = True
        options.log_errors = False
        options.case_sensitive = not self.folds
        if self.needle is not None:
            # In UTF-8, `s` and `k` match one character more, which makes RE2 four times slower.
            options.encoding = re2.Options.Encoding.LATIN1
        source = re2.escape(self._encoded) if self.literal else _translated(self.text)
        try:
            found: Pattern = re2.compile(b"(?m)" + source, options)
        except re2.error as error:
            raise PatternError(self.text, _reason(error)) from error
        return found

    @property
    def needle(self) -> bytes | None:
        """Literal ASCII text, in lower case if case is ignored; None for any other query."""
        is_plain = self.literal or _SPECIAL.isdisjoint(self.text)
        if not self.text or not self.text.isascii() or not is_plain or "\n" in self.text:
            return None
        return self._encoded.lower() if self.folds else self._encoded

    @property
    def _encoded(self) -> bytes:
        return self.text.encode(errors="surrogateescape")


def spans_of(pattern: Pattern, line: str) -> list[tuple[int, int]]:
    """Spans of a pattern's matches in a line, without empty ones."""
    encodable = line.encode(errors="replace").decode()  # lone surrogates; the length is the same
    found = (match.span() for match in pattern.finditer(encodable))
    return [(start, stop) for start, stop in found if stop > start]


def _translated(source: str) -> bytes:
    """Translate escapes that RE2 rejects but `re` accepts, or that it would match at chunk ends."""

    def translated(match: re.Match[str]) -> str:
        escaped = match[1]
        return _LINE_ENDS.get(escaped, match[0]) if escaped.isascii() else escaped

    return _ESCAPE.sub(translated, source).encode(errors="surrogateescape")


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    text = text.replace("(?m)", "", 1)
    if text.startswith(_UNSUPPORTED):
        text += (
            "; the syntax is that of RE2, which matches in linear time and therefore has no "
            "look-around, back-references or possessive quantifiers"
        )
    return text
