"""Line matching of two texts: blocks of equal lines, in order.

Lines that occur once on each side are anchors (`patiencediff`). Gaps between anchors are matched by
a bit-parallel longest common subsequence over Python integers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from patiencediff import PatienceSequenceMatcher

Block = tuple[int, int, int]
"""First matched line on either side, and the number of lines."""

Matcher = Callable[[Sequence[Hashable], Sequence[Hashable]], list[Block]]

_PAIRS = 200_000_000
"""Maximum pairs of lines to compare: about 30 ms and, temporarily, 25 MB."""


def match(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Match equal lines: unique lines first, then line by line in the gaps."""
    return refined(patience(a, b), (a, b), Budget().close)


def moved_lines(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """Return the new number of each line that both versions of a file have; counted from 1."""
    return {i + n: j + n for i, j, size in match(old, new) for n in range(1, size + 1)}


def patience(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
    """Match lines in blocks anchored on those that occur once on each side."""
    found = PatienceSequenceMatcher(None, a, b).get_matching_blocks()
    return [(i, j, size) for i, j, size in found if size]


def refined(
    blocks: Sequence[Block],
    keys: tuple[Sequence[Hashable], Sequence[Hashable]],
    matcher: Matcher,
) -> list[Block]:
    """Add the matches that `matcher` finds in the gaps between the blocks."""
    found: list[Block] = []
    i = j = 0
    for a, b, size in [*blocks, (len(keys[0]), len(keys[1]), 0)]:
        if i < a and j < b:
            inner = matcher(keys[0][i:a], keys[1][j:b])
            found += [(i + k, j + m, length) for k, m, length in inner]
        if size:
            found.append((a, b, size))
        i, j = a + size, b + size
    return joined(found)


def joined(blocks: Sequence[Block]) -> list[Block]:
    """Merge adjacent blocks."""
    found: list[Block] = []
    for a, b, size in blocks:
        if found and found[-1][0] + found[-1][2] == a and found[-1][1] + found[-1][2] == b:
            found[-1] = (found[-1][0], found[-1][1], found[-1][2] + size)
        else:
            found.append((a, b, size))
    return found


class Budget:
    """Limit on matching that takes time proportional to the product of both lengths."""

    def __init__(self, pairs: int = _PAIRS) -> None:
        self._left = pairs

    def close(self, a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Block]:
        """Blocks of a longest common subsequence; empty if that would exceed the budget."""
        both = set(a).intersection(b)
        places = [[n for n, line in enumerate(lines) if line in both] for lines in (a, b)]
        if len(places[0]) * len(places[1]) > self._left:
            return []
        self._left -= len(places[0]) * len(places[1])
        c, d = [a[n] for n in places[0]], [b[n] for n in places[1]]
        head, tail = common_ends(c, d)
        pairs = [(n, n) for n in range(head)]
        pairs += (
            (head + i, head + j)
            for i, j in _common(c[head : len(c) - tail], d[head : len(d) - tail])
        )
        pairs += ((len(c) - n, len(d) - n) for n in range(tail, 0, -1))
        return joined([(places[0][i], places[1][j], 1) for i, j in pairs])


def common_ends(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    """Number of equal items at the beginning, and of further ones at the end."""
    shorter = min(len(a), len(b))
    head = 0
    while head < shorter and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shorter - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    return head, tail


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Longest common subsequence, as pairs of positions.

    A clear bit i in a row means that line i of `a` extends the subsequence with the lines of `b` so
    far; a single addition carries this over all lines of `a` (Hyyrö, 2004).
    """
    places: dict[Hashable, int] = {}
    for i, line in enumerate(a):
        places[line] = places.get(line, 0) | 1 << i
    every = (1 << len(a)) - 1
    rows = [every]
    for line in b:
        row = rows[-1]
        here = row & places.get(line, 0)
        rows.append(((row + here) | (row - here)) & every if here else row)
    found: list[tuple[int, int]] = []
    i, j = len(a), len(b)
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif not rows[j - 1] >> (i - 1) & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]
