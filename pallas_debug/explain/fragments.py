"""Search of the catalogue by fragments of messages, names or titles, best first.

A message that jax or libtpu printed is recognised as a whole (`recognise.py`); this is for what a
person types from memory.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Sequence

from pallas_debug.explain import entries
from pallas_debug.model import Explanation

_WORD = re.compile(r"[a-z0-9]+")
_ESCAPES = re.compile(r"\\[a-zA-Z]|[.*?|\\]+")
"""What regular expressions have beside the text that they match."""

_WEIGHTS = (4.0, 2.0, 0.5)
"""Of a word in the names of an entry; in its message or title; in its cause or advice."""

MIN_LIKE = 0.75
"""Minimum similarity of a mistyped word to one of the catalogue."""


def containing(text: str) -> list[Explanation]:
    """Return the entries whose name, message or title has the beginnings of all words of a text.

    Those with the words in a row come first, and then those that are most about them.
    """
    words = _words(text)
    found = [entry for entry in entries() if words and all(_weight(entry, w) > 1 for w in words)]
    in_a_row = " ".join(words)
    return sorted(
        _ranked(words, found),
        key=lambda entry: all(in_a_row not in " ".join(field) for field in _fields(entry)[:2]),
    )


def nearest(text: str, count: int = 3) -> list[Explanation]:
    """Return the entries that have most of the words of a text, mistyped ones included.

    There are fewer if fewer have any of them.
    """
    known = sorted({word for entry in entries() for field in _fields(entry) for word in field})
    words = []
    for word in _words(text):
        is_known = any(one.startswith(word) for one in known)
        words += [word] if is_known else difflib.get_close_matches(word, known, 1, MIN_LIKE)
    found = [entry for entry in entries() if any(_weight(entry, word) for word in words)]
    return _ranked(words, found)[:count]


def _ranked(words: Sequence[str], found: Sequence[Explanation]) -> list[Explanation]:
    """Sort entries by the words that they have; rare words count for more."""
    weights = {
        word: math.log(len(entries()) / (sum(_weight(e, word) > 0 for e in entries()) + 1) + 1)
        for word in words
    }
    return sorted(found, key=lambda e: -sum(n * _weight(e, w) for w, n in weights.items()))


def _weight(entry: Explanation, word: str) -> float:
    for field, weight in zip(_fields(entry), _WEIGHTS, strict=True):
        if any(one.startswith(word) for one in field):
            return weight
    return 0.0


@functools.cache
def _fields(entry: Explanation) -> tuple[tuple[str, ...], ...]:
    message = _ESCAPES.sub(" ", entry.pattern.replace("\\ ", " "))
    names = " ".join((entry.id, entry.code or "", *entry.kinds))
    texts = names, f"{message} . {entry.title}", f"{entry.cause} {entry.advice}"
    return tuple(tuple(_words(text)) for text in texts)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
