"""Comparison of failures by stage, and by error code or core message."""

from __future__ import annotations

import re

_CODE = re.compile(r"\bE\d{4}\b")
_CHECK = re.compile(r"Check failed: (?P<text>.*)")
_WHERE = re.compile(
    r"(?: with)? (?:MLIR module|HLO) name `[^`]*`"
    r"|(?:\bin pallas_call \S+ )?\bat \S+:\d+\b|\S+\.py:\d+(?::\d+)?|/\S+"
)
_PLEA = re.compile(r"\s*Please file an? (?:issue|bug) at \S+")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?[KMG]?")
_LONGEST = 160


def signature(stage: str, message: str) -> str:
    """Return what identifies a failure: its stage, and an error code or the core of its message."""
    code, check = _CODE.search(message), _CHECK.search(message)
    if code is not None and stage == "compile":
        return f"{stage}: {code[0]}"
    if stage == "crash":
        return f"{stage}: {_core(check['text']) if check else ''}"
    return f"{stage}: {'' if stage == 'timeout' else _core(message)}"


def _core(message: str) -> str:
    """Return the message up to the first location or value."""
    paragraph = message.strip().partition("\n\n")[0]
    without = _WHERE.sub("", _PLEA.sub("", " ".join(paragraph.split())))
    return _NUMBER.sub("N", without)[:_LONGEST].partition("#")[0].strip(" .")
