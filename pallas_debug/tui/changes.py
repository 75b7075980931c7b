"""How many operations a text holds, and how many a pass added and took away. Imports no textual.

A text is read in pieces and never held: what is counted is as long as one likes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pallas_debug.ir.operations import LONG, guess_kind, name_of, read_line
from pallas_debug.tui.pace import Pace

_HEAD = 1 << 14
_PIECE = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a pass did to the operations of a text.

    Attributes:
      operations: how many there are after it.
      added, removed: how many of some name there are more, and less, than before; both 0 where
        operations changed in other ways alone. None where there is nothing before.
    """

    operations: int
    added: int | None = None
    removed: int | None = None

    @property
    def label(self) -> str:
        """`+1,612 -3`; `~` for a change within operations."""
        return self._said(lambda number: f"{number:,}")

    @property
    def short(self) -> str:
        """`+1.6k -3`."""
        return self._said(_short)

    def _said(self, spelled: Callable[[int], str]) -> str:
        if self.added is None or self.removed is None:
            return ""
        counts = (("+", self.added), ("-", self.removed))
        return " ".join(f"{sign}{spelled(count)}" for sign, count in counts if count) or "~"


def _short(number: int) -> str:
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 9950 else f"{number / 1000:,.0f}k"


def change(before: Counter[str] | None, after: Counter[str]) -> Change:
    """What became of the operations that were counted before and after a pass."""
    if before is None:
        return Change(operations=after.total())
    return Change(
        operations=after.total(),
        added=(after - before).total(),
        removed=(before - after).total(),
    )


def count_operations(opened: Callable[[], int], stopped: Callable[[], bool]) -> Counter[str] | None:
    """How often each operation occurs in a text; None where one was told to stop.

    Args:
      opened: opens the text: a descriptor.

    Raises:
      OSError, PallasDebugError: the file cannot be read.
    """
    counts: Counter[str] = Counter()
    pace = Pace()
    with os.fdopen(opened(), "rb") as file:
        kind = guess_kind(file.read(_HEAD).decode(errors="replace"))
        file.seek(0)
        while lines := file.readlines(_PIECE):
            for data in lines:
                text = data[:LONG].decode(errors="replace").rstrip("\n")
                if kind == "bundles":
                    counts.update(operation.name for operation in read_line(text, kind))
                elif name := name_of(text, kind):
                    counts[name] += 1
                pace.rest()
            if stopped():
                return None
    return counts
