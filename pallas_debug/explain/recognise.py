"""Matching of texts against the entries of the catalogue.

A message is recognised by its error code or by its core, never by a prefix or by the exception's
class: those change from release to release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.model import Explanation

CONTEXT = re.compile(r"[Pp]allas|[Mm]osaic|tpu_custom_call|libtpu|\btpu\b|\bTPU\b")
"""Words that, near a message which other programs print too, tie it to a kernel."""


def matches(
    text: str, catalogue: Iterable[Explanation] = CATALOGUE, *, in_context: bool = False
) -> list[Explanation]:
    """Entries that recognise a text; general ones only if no other does.

    Args:
      in_context: whether the text is known to be about a kernel.
    """
    about_kernels = in_context or CONTEXT.search(text) is not None
    found = [
        entry
        for entry in catalogue
        if entry.pattern
        and (about_kernels or not entry.ambiguous)
        and (not entry.marks or any(mark in text for mark in entry.marks))
        and re.search(entry.pattern, text)
    ]
    return [entry for entry in found if not entry.general] or found


def first(
    text: str, catalogue: Iterable[Explanation] = CATALOGUE, *, in_context: bool = False
) -> Explanation | None:
    """Entry that recognises a text; of several, the one that matches last.

    The last of several chained exceptions is the one that the user sees.
    """
    found = matches(text, catalogue, in_context=in_context)
    return max(found, key=lambda entry: _last(entry, text), default=None)


def _last(entry: Explanation, text: str) -> int:
    return max((match.start() for match in re.finditer(entry.pattern, text)), default=-1)
