"""Which value a name stands for, what a line computes of which values, whether two are the same.

A name stands for the value of the last line above that defines it, as its result or as an argument
of the block that begins there. A name that no line defines stands for one value throughout. All is
done for all lines of a text at once, with numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pallas_debug.ir.match import Block
from pallas_debug.ir.normal import ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Values:
    """The names in a text, the mentions, in order; and what they stand for."""

    names: NDArray[Any]
    """The name of each mention, as a number."""

    counts: NDArray[Any]
    """How many mentions each line has."""

    results: NDArray[Any]
    """How many of them, the first ones, are results of the line."""

    arguments: NDArray[Any]
    """Whether each mention is that of an argument of a block that begins in its line."""

    @cached_property
    def first(self) -> NDArray[Any]:
        """The first mention of each line."""
        found: NDArray[Any] = self.counts.cumsum() - self.counts
        return found

    @cached_property
    def line(self) -> NDArray[Any]:
        """The line of each mention."""
        import numpy as np

        return np.arange(len(self.counts)).repeat(self.counts)

    @cached_property
    def place(self) -> NDArray[Any]:
        """Which of its line each mention is, from 0."""
        import numpy as np

        found: NDArray[Any] = np.arange(len(self.names)) - self.first.repeat(self.counts)
        return found

    @cached_property
    def is_result(self) -> NDArray[Any]:
        """Whether a mention is that of a result of its line."""
        found: NDArray[Any] = self.place < self.results.repeat(self.counts)
        return found

    @cached_property
    def defines(self) -> NDArray[Any]:
        """Whether a mention defines its name anew."""
        found: NDArray[Any] = self.is_result | self.arguments
        return found

    @cached_property
    def value(self) -> NDArray[Any]:
        """For each mention the one that defines its value; if there is none, the first of all."""
        import numpy as np

        # The mentions of each name, one name after the other. Operands of a line stand for what
        # is defined above, hence before its results.
        order = np.lexsort((self.defines, self.line))
        numbers = np.unique(self.names[order], return_inverse=True)[1]
        numbers = np.sort(numbers << _PLACES | np.arange(len(order)))  # quicker than `argsort`
        order = order[numbers & (1 << _PLACES) - 1]
        names, defines = self.names[order], self.defines[order]
        defines[:1] = True
        defines[1:] |= names[1:] != names[:-1]
        found: NDArray[Any] = np.empty_like(order)
        found[order] = order[np.flatnonzero(defines)[defines.cumsum() - 1]]
        return found

    def mentions(self, lines: NDArray[Any]) -> NDArray[Any]:
        """All mentions in some lines."""
        return ranges(self.first[lines], (self.first + self.counts)[lines])

    def computed(self, lines: NDArray[Any], depth: int) -> NDArray[Any]:
        """What each line computes, as a number, by the lines that define its operands.

        Args:
          lines: for each line a number that tells it from others, whatever names are in it.
          depth: up how many definitions to look.
        """
        import numpy as np

        uses = np.flatnonzero(~self.defines)
        sources = self.value[uses]
        weights = _mixed(self.place[uses] + _OPERAND)
        # Arguments, and what nothing defines, stand behind all lines and are always the same.
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


_PLACES = 32
"""Bits for the place of a mention in a text."""

_OPERAND = 1 << 32
"""Added to the place of an operand, as the numbers of lines are mixed as well."""


def _mixed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Other numbers, of which no sum is likely to be that of others (splitmix64)."""
    import numpy as np

    mixed = numbers.astype(np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def same_values(old: Values, new: Values, blocks: Sequence[Block]) -> list[Block]:
    """The blocks without the lines whose operands are others than before, whatever their names.

    Which new value an old one is, the matched lines tell that define it; for what is defined in
    lines that changed, or nowhere, the first matched line that uses it.
    """
    import numpy as np

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
    for number in _at_odds(row[free], one[free], other[free]):
        alike[number] = False
    a, b = a[alike], b[alike]
    if not len(a):
        return []
    begins = np.flatnonzero(np.append(True, (np.diff(a) != 1) | (np.diff(b) != 1)))
    sizes = np.diff(begins, append=len(a))
    return list(zip(a[begins].tolist(), b[begins].tolist(), sizes.tolist(), strict=True))


def _at_odds(row: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> Iterator[int]:
    """The rows that pair values otherwise than those before them."""
    import numpy as np

    if not len(row):
        return
    # Only values with several partners can be at odds, and they are few.
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
