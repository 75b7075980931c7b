"""Comparison of failures by stage, and by error code or core message."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pallas_debug.model import Failure

_CODE = re.compile(r"\bE\d{4}\b")
_CHECK = re.compile(r"Check failed: (?P<text>.*)")
_WHERE = re.compile(
    r"(?: with)? (?:MLIR module|HLO) name `[^`]*`"
    r"|(?:\bin pallas_call \S+ )?\bat \S+:\d+\b|\S+\.py:\d+(?::\d+)?|/\S+"
)
_PLEA = re.compile(r"\s*Please file an? (?:issue|bug) at \S+")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?[KMG]?")
_LONGEST = 160


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The part of a failure that identifies it.

    Attributes:
      text: an error code, or the beginning of the message without numbers and locations.
    """

    stage: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"


def signature(failure: Failure) -> Signature:
    return signature_of(failure.stage, failure.message)


def signature_of(stage: str, message: str) -> Signature:
    code = _CODE.search(message)
    if code is not None and stage == "compile":
        return Signature(stage=stage, text=code[0])
    check = _CHECK.search(message)
    if stage == "crash":
        return Signature(stage=stage, text=_core(check["text"]) if check else "")
    if stage == "timeout":
        return Signature(stage=stage, text="")
    return Signature(stage=stage, text=_core(message))


def _core(message: str) -> str:
    """Return the message up to the first location or value."""
    paragraph = message.strip().partition("\n\n")[0]
    without = _WHERE.sub("", _PLEA.sub("", " ".join(paragraph.split())))
    return _NUMBER.sub("N", without)[:_LONGEST].partition("#")[0].strip(" .")
