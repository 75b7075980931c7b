"""MLIR locations in compiler text, and the Python lines they name.

Two spellings occur: inline (`loc("kernel"("rows.py":6:17 to :47))`, in error messages) and by
alias (`#loc7 = loc("rows.py":6:17 to :47)` at the end of a module, `loc(#loc7)` on operations).
Both nest: named locations around a callee, `callsite(callee at caller)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.model import SourceLine

_FILE_LINE = re.compile(r'"(?P<file>(?:[^"\\]|\\.)+)":(?P<line>\d+):\d+')
_NAME_AROUND = re.compile(r'"(?P<name>(?:[^"\\]|\\.)*)"\(\s*$')
_AT_LOCATION = re.compile(r"\bloc\((?P<body>.*)\)")


def source_lines(text: str) -> Iterator[SourceLine]:
    """The Python lines that `text` names, in the order in which they stand there.

    For a call chain that is the innermost function first, as MLIR prints callee before caller.
    """
    for match in _FILE_LINE.finditer(text):
        around = _NAME_AROUND.search(text, 0, match.start())
        yield SourceLine(
            file=_unescape(match["file"]),
            line=int(match["line"]),
            function=_unescape(around["name"]) if around else None,
        )


def first_source_line(message: str) -> SourceLine | None:
    """The innermost Python line of the first location in an error message, or None."""
    for match in _AT_LOCATION.finditer(message):
        for line in source_lines(match["body"]):
            return line
    return None


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
