"""Regular expressions as the search runs them: over bytes, many lines at a time, never past one.

A pattern is rewritten so that what would match a newline does not (`[^,]`, `\\s`): it can then run
over a whole chunk and still speaks of lines. And what every match must hold is read off it, as
finding bytes is ten times as quick as matching.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|.", re.DOTALL)
_NOT_NEWLINE = {r"\s": r"[^\S\n]", r"\W": r"[^\w\n]", r"\D": r"[^\d\n]"}
_SHORTEST = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What to look for.

    Attributes:
      text: a regular expression as Python has them, or a literal.
      ignore_case: of ASCII letters. None for smart case: ignored unless the text has a capital.
    """

    text: str
    literal: bool = False
    ignore_case: bool | None = False

    @property
    def folds(self) -> bool:
        """Whether upper and lower case are alike."""
        if self.ignore_case is None:
            bare = self.text if self.literal else re.sub(r"\\.", "", self.text)
            return not any(c.isupper() for c in bare)
        return self.ignore_case

    def compiled(self) -> re.Pattern[bytes]:
        """The pattern, for lines of UTF-8; for such in lower case, if it folds.

        That is three times as quick as a pattern that ignores case.

        Raises:
          re.error: the text is no regular expression.
        """
        return re.compile(self._bytes(), re.MULTILINE)

    def of_line(self) -> re.Pattern[bytes] | None:
        """The same up to the end of the line: as many matches as there are lines that match.

        None where what is matched may go past a line, or be nothing.
        """
        if "(?" in self.text or r"\n" in self.text or "\n" in self.text:
            return None
        if self.compiled().search(b""):
            return None
        return re.compile(b"(?:" + self._bytes() + b").*(?:\n|\\Z)", re.MULTILINE)

    def _bytes(self) -> bytes:
        source = re.escape(self.text) if self.literal else self.text
        re.compile(source)  # its errors speak of characters
        tokens = _tokens(source)
        if self.folds:
            tokens = (token if _is_escape(token) else _lowered(token) for token in tokens)
        return b"".join(map(_bytes_of, tokens))

    def of_text(self) -> re.Pattern[str]:
        """The pattern, for the characters of one line.

        Raises:
          re.error: the text is no regular expression.
        """
        source = re.escape(self.text) if self.literal else self.text
        return re.compile(source, re.IGNORECASE if self.folds else 0)

    def needle(self) -> bytes | None:
        """The bytes that are the whole pattern, where it is nothing but characters."""
        if not self.text or not (self.literal or _SPECIAL.isdisjoint(self.text)):
            return None
        return self._spelled(self.text)

    def required(self) -> bytes | None:
        """Bytes that every match holds, where some are easy to see; in lower case if it folds."""
        if self.literal or not {"|", "("}.isdisjoint(_tokens(self.text)):
            return None
        best = max(_runs(self.text), key=len)
        return self._spelled(best) if len(best) >= _SHORTEST else None

    def _spelled(self, text: str) -> bytes:
        return (_lower(text) if self.folds else text).encode(errors="replace")


def _tokens(source: str) -> Iterator[str]:
    """Escapes, classes, repetitions and characters, one at a time."""
    return (found[0] for found in _TOKEN.finditer(source))


def _is_escape(token: str) -> bool:
    return token.startswith("\\")


def _lowered(token: str) -> str:
    """In a class too, escapes stay: `[\\W_A-F]`."""
    return re.sub(r"\\.|[^\\]+", lambda m: m[0] if _is_escape(m[0]) else _lower(m[0]), token)


def _lower(text: str) -> str:
    """Of ASCII alone, as bytes are."""
    return "".join(c.lower() if c.isascii() else c for c in text)


def _bytes_of(token: str) -> bytes:
    if token in _NOT_NEWLINE:
        return _NOT_NEWLINE[token].encode()
    if token.startswith("[") and token.endswith("]") and len(token) > 1:
        inside = token[1:-1].replace(r"\s", r" \t\r\f\v")
        if inside.startswith("^"):
            inside = r"^\n" + inside[1:]
        # A class of bytes cannot hold characters of several: any of those, rather than none.
        wide = "".join(c if c.isascii() else "\\x80-\\xff" for c in inside)
        return f"[{wide}]".encode()
    if token.isascii():
        return token.encode()
    return b"(?:" + re.escape(token.removeprefix("\\").encode(errors="replace")) + b")"


def _runs(source: str) -> list[str]:
    """Runs of characters that a match holds as they stand there."""
    runs, run = [""], ""
    for token in _tokens(source):
        plain = token
        if token.startswith("\\"):
            plain = token[1:] if not token[1:].isalnum() else ""
        elif token in _SPECIAL or len(token) > 1:
            plain = ""
        if token[0] in "*?{":
            run = run[:-1]  # what may be there no times
        if plain:
            run += plain
        else:
            runs.append(run)
            run = ""
    return [*runs, run]
