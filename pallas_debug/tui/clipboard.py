"""Copying through the terminal: OSC 52, which goes through SSH.

Imports no textual. Whether a terminal takes it, nobody can ask: some have to be told to.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

MOST = 74_994
"""Bytes that are copied at most: terminals take sequences of 100,000 characters, in base64."""

_CHUNK = 240
"""Characters of a sequence that screen hands on at a time."""


def sequences(text: str, environment: Mapping[str, str]) -> list[str]:
    """What is written to the terminal so that it copies a text.

    tmux sets the clipboard itself if `set-clipboard` is `on`, and hands a sequence on if
    `allow-passthrough` is: it is asked for both. screen hands on what is wrapped for it.
    """
    data = base64.b64encode(text.encode(errors="replace")).decode()
    plain = f"\x1b]52;c;{data}\a"
    if environment.get("TMUX"):
        doubled = plain.replace("\x1b", "\x1b\x1b")
        return [plain, f"\x1bPtmux;{doubled}\x1b\\"]
    if environment.get("STY"):
        chunks = (plain[i : i + _CHUNK] for i in range(0, len(plain), _CHUNK))
        return ["".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)]
    return [plain]


def fitting(lines: list[str]) -> tuple[str, int]:
    """As many of the first lines as can be copied, joined, and how many they are.

    A first line that is too long by itself is cut.
    """
    left = MOST
    for number, line in enumerate(lines):
        left -= len(line.encode(errors="replace")) + (number > 0)
        if left < 0 and number == 0:
            return line.encode(errors="replace")[:MOST].decode(errors="ignore"), 1
        if left < 0:
            return "\n".join(lines[:number]), number
    return "\n".join(lines), len(lines)
