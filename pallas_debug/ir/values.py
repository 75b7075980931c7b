"""Value resolution: what names refer to, hashes of what lines compute, operand comparison.

A name refers to the closest definition above it, either a result or an argument of the block that
starts there. A name without a definition has the same value throughout. numpy processes all lines
of a text at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallas_debug.ir.match import Block
from pallas_debug.ir.normal import ranges


@dataclass(frozen=True, kw_only=True)
class Values:
    """Mentions of names in a text, in order, and the values they refer to."""

    names: NDArray[Any]
    """The name of each mention, as a number."""

    counts: NDArray[Any]
    """Number of mentions in each line."""

    results: NDArray[Any]
    """Number of results among them, which come first."""

    arguments: NDArray[Any]
    """Whether each mention is an argument of a block that starts in its line."""

    @cached_property
    def first(self) -> NDArray[Any]:
        """Index of the first mention of each line."""
        found: NDArray[Any] = self.counts.cumsum() - self.counts
        return found

    @cached_property
    def line(self) -> NDArray[Any]:
        """Line of each mention."""
        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def place(self) -> NDArray[Any]:
        """Index of each mention in its line."""
        found: NDArray[Any] = np.arange(len(self.names)) - self.first.repeat(self.counts)
        return found

    @cached_property
    def is_result(self) -> NDArray[Any]:
        """For each mention, whether it is a result of its line."""
        found: NDArray[Any] = self.place < self.results.repeat(self.counts)
        return found

    @cached_property
    def defines(self) -> NDArray[Any]:
        """For each mention, whether it defines its name."""
        found: NDArray[Any] = self.is_result | self.arguments
        return found

    @cached_property
    def value(self) -> NDArray[Any]:
        """For each mention, the one that defines its value; the first mention if none does."""
        # Group mentions by name, a line's operands before its results: they refer to lines above.
        order = np.argsort(self.line << 1 | self.defines, kind="stable")
        order = order[np.argsort(self.names[order], kind="stable")]
        names, defines = self.names[order], self.defines[order]
        defines[:1] = True
        defines[1:] |= names[1:] != names[:-1]
        found: NDArray[Any] = np.empty_like(order)
        found[order] = order[np.flatnonzero(defines)[defines.cumsum() - 1]]
        return found

    def mentions(self, lines: NDArray[Any]) -> NDArray[Any]:
        """Indices of all mentions in some lines."""
        return ranges(self.first[lines], (self.first + self.counts)[lines])

    def computed(self, lines: NDArray[Any], depth: int) -> NDArray[Any]:
        """Hash what each line computes, including the lines that define its operands.

        Args:
          lines: a number for each line, equal for lines that differ only in names.
          depth: levels of definitions to follow.
        """
        uses = np.flatnonzero(~self.defines)
        sources = self.value[uses]
        weights = _mixed(self.place[uses] + _OPERAND)
        # Arguments and undefined names map to one extra line, which never changes.
        above = np.where(self.is_result[sources], self.line[sources], len(lines))
        users, starts = np.unique(self.line[uses], return_index=True)
        alone = np.append(_mixed(lines), np.uint64(0))
        found = alone.copy()
        if not len(users):
            return found[:-1]
        alone[users] += np.add.reduceat(weights * self.place[sources].view(np.uint64), starts)
        for _ in range(depth):
            mixed = alone.copy()
            mixed[users] += np.add.reduceat(weights * found[above], starts)
            found = _mixed(mixed)
            found[-1] = 0
        return found[:-1]


_OPERAND = 1 << 32
"""Offset that keeps operand indices apart from line numbers in hashes."""


def _mixed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Hash numbers (splitmix64) so that sums are unlikely to collide."""
    mixed = numbers.astype(np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def same_values(old: Values, new: Values, blocks: Sequence[Block]) -> list[Block]:
    """Drop matched lines whose operands are different values than before.

    Old and new values correspond if matched lines define them; otherwise, according to the first
    matched line that uses them.
    """
    if not blocks:
        return []
    starts, others, sizes = np.array(blocks, np.int64).T
    a, b = ranges(starts, starts + sizes), ranges(others, others + sizes)
    alike = old.counts[a] == new.counts[b]
    rows = np.flatnonzero(alike)
    one, other = old.mentions(a[rows]), new.mentions(b[rows])
    row = rows.repeat(old.counts[a[rows]])
    defined = old.defines[one] & new.defines[other]
    there, back = np.full(len(old.names), -1), np.full(len(new.names), -1)
    there[one[defined]], back[other[defined]] = other[defined], one[defined]
    row, one, other = row[~defined], old.value[one[~defined]], new.value[other[~defined]]
    free = (there[one] < 0) & (back[other] < 0)
    alike[row[~free & (there[one] != other)]] = False
    free &= alike[row]
    for number in _conflicting(row[free], one[free], other[free]):
        alike[number] = False
    a, b = a[alike], b[alike]
    if not len(a):
        return []
    begins = np.flatnonzero(np.append(True, (np.diff(a) != 1) | (np.diff(b) != 1)))
    sizes = np.diff(begins, append=len(a))
    return list(zip(a[begins].tolist(), b[begins].tolist(), sizes.tolist(), strict=True))


def _conflicting(row: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> Iterator[int]:
    """Yield rows that pair values differently from earlier rows."""
    if not len(row):
        return
    # Only values with several partners can conflict, and these are few.
    size = int(other.max()) + 1
    firsts, seconds = np.divmod(np.unique(one * size + other), size)
    doubtful = (np.bincount(firsts)[one] > 1) | (np.bincount(seconds)[other] > 1)
    there: dict[int, int] = {}
    back: dict[int, int] = {}
    rows: dict[int, set[tuple[int, int]]] = {}
    columns = (column[doubtful].tolist() for column in (row, one, other))
    for number, x, y in zip(*columns, strict=True):
        rows.setdefault(number, set()).add((x, y))
    for number, found in rows.items():
        single = len({x for x, _ in found}) == len({y for _, y in found}) == len(found)
        if single and all(there.get(x, y) == y and back.get(y, x) == x for x, y in found):
            there.update(found)
            back.update((y, x) for x, y in found)
        else:
            yield number
