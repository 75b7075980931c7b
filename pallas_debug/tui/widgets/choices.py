"""Choices of a dialog, ranked by how well a typed text matches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from textual.fuzzy import FuzzySearch

T = TypeVar("T")

MAX_RANKED = 200
"""Maximum number of matches to list: beyond it, typing on is faster than scrolling."""

_MAX_WAYS = 500
"""Maximum number of ways in which letters may be found: Textual tries them all."""


class Choice(NamedTuple, Generic[T]):
    """Entry of a dialog.

    Attributes:
      label: name that is matched.
      note: kind of the entry, or the key that does the same.
    """

    label: str
    value: T
    note: str = ""


class RankedMatch(NamedTuple, Generic[T]):
    """Choice, with the characters of its label that were matched."""

    choice: Choice[T]
    found: Sequence[int] = ()


def ranked(choices: Iterable[Choice[T]], text: str) -> list[RankedMatch[T]]:
    """Return the choices that contain the letters of all words in order, the best first."""
    words = text.lower().split()
    search = FuzzySearch(cache_size=1)  # labels change, and there may be 10,000
    found: list[tuple[float, RankedMatch[T]]] = []
    for choice in choices:
        label = choice.label.lower()
        scores = 0.0
        offsets: list[int] = []
        for word in words:
            if word not in label and math.prod(map(label.count, word)) > _MAX_WAYS:
                break
            score, at = search.match(word, label)
            if not score:
                break
            scores += score
            offsets += at
        else:
            found.append((scores, RankedMatch(choice, sorted({*offsets}))))
    found.sort(key=lambda pair: -pair[0])  # stable: equal ones stay in order
    return [match for _, match in found[:MAX_RANKED]]
