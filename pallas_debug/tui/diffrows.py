"""A diff as rows to draw: one below the other with signs, or old and new side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pallas_debug.ir.diff import CONTEXT, Change, Diff, words
from pallas_debug.ir.match import Budget
from pallas_debug.tui.lines import LONGEST

Tag = Literal["hunk", "equal", "removed", "added", "changed", "note"]
Spans = list[tuple[int, int]]

_COMPARED = 2 * LONGEST
"""Characters of a line that are compared by words: more than are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row.

    Attributes:
      tag: of what is drawn: `removed` and `added` lines, or both beside each other (`changed`).
      old, new: positions in the diff's `old.lines` and `new.lines`; where a line has a partner
        that it is compared with by words, both are there.
      text: of a row that is no line.
    """

    tag: Tag
    old: int | None = None
    new: int | None = None
    text: str = ""


class DiffRows:
    """The rows of a diff. What takes long is done when it is made."""

    def __init__(self, diff: Diff) -> None:
        self.diff = diff
        budget = Budget()
        # For each change, by where it begins, which line became which.
        self._pairs = {
            (c.old.start, c.new.start): diff.pairs(c, budget)
            for c in diff.changes
            if c.tag == "replace"
        }
        self.words = lru_cache(maxsize=4096)(self._words)

    def rows(self, *, split: bool, whole: bool) -> list[Row]:
        """All rows.

        Args:
          split: old and new beside each other.
          whole: all lines, and not just the changes with some lines around them.
        """
        context = len(self.diff.new.lines) if whole else CONTEXT
        found: list[Row] = []
        for hunk in self.diff.hunks(context):
            found.append(Row(tag="hunk", text=self.diff.place(hunk)))
            for change in hunk:
                found += self._split(change) if split else self._unified(change)
        return found

    def text(self, row: Row) -> str:
        """What a row says, for the search: of two different lines both."""
        old, new = self.diff.old.lines, self.diff.new.lines
        if row.tag in ("hunk", "note"):
            return row.text
        if row.tag == "removed":
            return old[row.old or 0]
        if row.tag == "changed" and row.old is not None and row.new is not None:
            return f"{old[row.old]}\t{new[row.new]}"
        return new[row.new or 0]

    def _words(self, old: int, new: int) -> tuple[Spans, Spans]:
        a, b = self.diff.old.lines[old], self.diff.new.lines[new]
        return words(a[:_COMPARED], b[:_COMPARED])

    def _paired(self, change: Change) -> list[tuple[int | None, int | None]]:
        if change.tag == "delete":
            return [(n, None) for n in change.old]
        if change.tag == "insert":
            return [(None, n) for n in change.new]
        return self._pairs[change.old.start, change.new.start]

    def _split(self, change: Change) -> Iterator[Row]:
        if change.tag == "equal":
            for old, new in zip(change.old, change.new, strict=True):
                yield Row(tag="equal", old=old, new=new)
            return
        for a, b in self._paired(change):
            tag: Tag = "removed" if b is None else "added" if a is None else "changed"
            yield Row(tag=tag, old=a, new=b)

    def _unified(self, change: Change) -> Iterator[Row]:
        if change.tag == "equal":
            yield from self._split(change)
            return
        pairs = self._paired(change)
        yield from (Row(tag="removed", old=a, new=b) for a, b in pairs if a is not None)
        yield from (Row(tag="added", old=a, new=b) for a, b in pairs if b is not None)
