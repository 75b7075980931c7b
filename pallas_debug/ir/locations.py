"""MLIR locations in compiler text, and the Python lines they name.

Locations are printed inline (`loc("kernel"("rows.py":6:17 to :47))`, in error messages) or as an
alias (`#loc7 = loc("rows.py":6:17 to :47)` at the end of a module, `loc(#loc7)` on operations).
Both nest: named locations around a callee, `callsite(callee at caller)`. If the callee is an alias,
its name is elsewhere and the line has no function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.model import SourceLine

_STRING = r'"(?P<{}>(?:[^"\\\n]|\\.)*)"'
_LINE = re.compile(
    rf"(?:{_STRING.format('name')}\(\s*)?{_STRING.format('file')}:(?P<line>\d{{1,9}}):\d+"
)
_PLACE = re.compile(r'"(?:[^"\\]|\\.)*":\d{1,9}:\d{1,9}(?: to (?:\d{1,9})?:\d{1,9})?')
_AT_LOCATION = re.compile(r"\bloc\((?P<body>.*)\)")
_ESCAPE = re.compile(rb"\\([0-9A-F]{2}|\\)")


def source_lines(text: str) -> Iterator[SourceLine]:
    """Yield the Python lines named in `text`, in order.

    For a call chain, the innermost function comes first: MLIR prints callee before caller.
    """
    for match in _LINE.finditer(text):
        name = match["name"]
        yield SourceLine(
            file=unescape(match["file"]),
            line=int(match["line"]),
            function=None if name is None else unescape(name),
        )


def first_source_line(message: str) -> SourceLine | None:
    """Innermost Python line of the first location in an error message, or None."""
    for match in _AT_LOCATION.finditer(message):
        for line in source_lines(match["body"]):
            return line
    return None


def first_place(text: str) -> str:
    """File, line and columns of the first location in a text, as printed; empty without one."""
    found = _PLACE.search(text)
    return found[0] if found else ""


def unescape(text: str) -> str:
    r"""Decode a string as MLIR prints it between quotes: `\22` is a quote, `\C3\BC` a UTF-8 ü.

    Bytes that are not UTF-8 become surrogates, so that the path can still be opened.
    """
    if "\\" not in text and text.isascii():
        return text
    raw = _ESCAPE.sub(
        lambda m: b"\\" if m[1] == b"\\" else bytes.fromhex(m[1].decode()),
        text.encode(errors="replace"),
    )
    return raw.decode(errors="surrogateescape")
