"""Kinds of hints: what looks unintended in a kernel, although a correct program may do it.

A finding follows from the semantics of the machine or the compiler; a hint does not, and fails
nothing. There are few kinds, and none has a list of exceptions. Imports nothing from this package,
so that `model.py` can use it.
"""

from __future__ import annotations

from enum import StrEnum


class HintKind(StrEnum):
    """A kind of hint.

    Attributes:
      summary: what was observed, in one line.
    """

    _value_: str
    summary: str

    def __new__(cls, name: str, summary: str) -> HintKind:
        member = str.__new__(cls, name)
        member._value_ = name
        member.summary = summary
        return member

    CARRIED = "carried", "memory written for one output block is read for another one"
    UNREAD_WRITE = "unread write", "a value is replaced before anything reads it"
    UNREAD_INPUT = "unread input", "part of an input is in no block and no copy"
    SEVERAL_WRITERS = (
        "several writers",
        "different grid points write the same element, and the last one wins",
    )
    PLACEMENT = "placement", "XLA puts an operand in another memory than the kernel declares"
    SAME_RANDOM_BITS = "same random bits", "the same random bits are drawn again"
    LOW_PRECISION_SUM = "low-precision sum", "a long sum is kept in a 16-bit float type"
