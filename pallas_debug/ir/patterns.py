"""What users search for: text or regular expressions, which RE2 matches in linear time.

A compiled pattern serves chunks of many lines and single lines alike: no match contains a newline,
and `^` and `$` are the ends of a line.
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
"""Escapes for the ends of a text, which would otherwise be those of an arbitrary chunk."""

_UNSUPPORTED = ("invalid perl operator", "invalid escape", "bad repetition", "invalid repetition")


class Match(Protocol):
    """Where a pattern matches."""

    def span(self) -> tuple[int, int]: ...


class Pattern(Protocol):
    """The part of a compiled pattern's interface that searches use."""

    def search(self, text: Text, /) -> Match | None: ...

    def finditer(self, text: Text, pos: int = 0, /) -> Iterator[Match]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What to look for.

    Attributes:
      text: a regular expression in the syntax of RE2, or literal text.
      ignore_case: None for smart case: ignored unless the text has a capital letter.
    """

    text: str
    literal: bool = False
    ignore_case: bool | None = False

    @property
    def folds(self) -> bool:
        """Whether upper and lower case are alike."""
        if self.ignore_case is None:
            letters = self.text if self.literal else _ESCAPE.sub("", self.text)
            return not any(c.isupper() for c in letters)
        return self.ignore_case

    def compiled(self, *, to_line_end: bool = False) -> Pattern:
        """The pattern, for bytes in UTF-8 and for `str`.

        Args:
          to_line_end: extend each match to the end of its line, to count lines quickly. RE2 is
            faster where it looks for the longest match, which is the same one then.

        Raises:
          PatternError: the text is not a valid regular expression, or not one that RE2 supports.
        """
        import re2  # a browser starts without it

        options = re2.Options()
        options.never_nl = True
        options.never_capture = True
        options.log_errors = False
        options.case_sensitive = not self.folds
        source = re2.escape(self._encoded) if self.literal else _translated(self.text)
        options.longest_match = to_line_end
        if to_line_end:
            source = b"(?:" + source + b").*"
        try:
            found: Pattern = re2.compile(b"(?m)" + source, options)
        except re2.error as error:
            raise PatternError(self.text, _reason(error)) from error
        return found

    def needle(self) -> bytes | None:
        """The bytes to look for if the pattern is mere text; in lower case if it folds."""
        plain = self.literal or _SPECIAL.isdisjoint(self.text)
        if not self.text or not plain or "\n" in self.text:
            return None
        if self.folds:
            return self._encoded.lower() if self.text.isascii() else None
        return self._encoded

    @property
    def _encoded(self) -> bytes:
        return self.text.encode(errors="surrogateescape")


def spans_of(pattern: Pattern, line: str) -> list[tuple[int, int]]:
    """Where a pattern matches in a line, without empty matches."""
    encodable = line.encode(errors="replace").decode()  # lone surrogates; the length is the same
    found = (match.span() for match in pattern.finditer(encodable))
    return [(start, stop) for start, stop in found if stop > start]


def _translated(source: str) -> bytes:
    """Escapes that Python's `re` accepts and RE2 does not, or takes for the ends of a chunk."""

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
