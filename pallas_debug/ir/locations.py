"""MLIR locations in compiler text, and the Python lines they name.

Locations are printed inline (`loc("kernel"("rows.py":6:17 to :47))`, in error messages) or as an
alias (`#loc7 = loc("rows.py":6:17 to :47)` at the end of a module, `loc(#loc7)` on operations).
Both nest: named locations around a callee, `callsite(callee at caller)`. If the callee is an alias,
its name is elsewhere and the line has no function.
"""

from __future__ import annotations

import re

_PLACE = re.compile(r'"(?:[^"\\]|\\.)*":\d{1,9}:\d{1,9}(?: to (?:\d{1,9})?:\d{1,9})?')
_ESCAPE = re.compile(rb"\\([0-9A-F]{2}|\\)")


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
