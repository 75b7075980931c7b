"""What changed between two texts: changed lines, the words within them, counts of operations.

Lines are matched by `patiencediff`, which anchors on lines that occur once on each side. Where the
numbers of values are ignored few lines do, so there lines are first matched by what they compute:
a line together with the lines that define its operands, all the way up. What stays between such
anchors is matched by the lines alone. A matched line whose operands turn out to be other values
than before is a change all the same.
"""

from __future__ import annotations

import difflib
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pallas_debug.ir.match import Block, Budget, joined, match, patience, refined
from pallas_debug.ir.normal import Noise, ValueNames, normal_lines, value_names
from pallas_debug.ir.operations import Kind, Module, guess_kind, name_of

Tag = Literal["equal", "replace", "delete", "insert"]
CONTEXT = 3

_MANY_WORDS = 1500
_FEW_PAIRS = 10_000
_WORDS = re.compile(r"[%#@$]?[\w.$-]+|\s+|.", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Lines of the old text that became lines of the new one; `equal` ones did not change."""

    tag: Tag
    old: range
    new: range


@dataclass(frozen=True, kw_only=True)
class Side:
    """One text of a diff: the lines that take part, and their numbers (from 0) in the text."""

    lines: Sequence[str]
    numbers: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Diff:
    """All changes from one text to another, in order; they cover every line that takes part.

    Ranges in `changes` are positions in `old.lines` and `new.lines`.
    """

    old: Side
    new: Side
    changes: tuple[Change, ...]
    kind: Kind

    @property
    def changed(self) -> bool:
        return any(c.tag != "equal" for c in self.changes)

    @property
    def removed(self) -> int:
        return sum(len(c.old) for c in self.changes if c.tag != "equal")

    @property
    def added(self) -> int:
        return sum(len(c.new) for c in self.changes if c.tag != "equal")

    def hunks(self, context: int = CONTEXT) -> Iterator[tuple[Change, ...]]:
        """Changes that stand close together, with lines of context around them."""
        hunk: list[Change] = []
        for position, change in enumerate(self.changes):
            if change.tag != "equal":
                hunk.append(change)
                continue
            last = position == len(self.changes) - 1
            size = len(change.old)
            if hunk and (size > 2 * context or last):
                yield (*hunk, *_cut(change, 0, min(context, size)))
                hunk = []
            if not last:
                keep = size if hunk else min(context, size)
                hunk += _cut(change, size - keep, size)
        if any(c.tag != "equal" for c in hunk):
            yield tuple(hunk)

    def pairs(
        self, change: Change, budget: Budget | None = None
    ) -> list[tuple[int | None, int | None]]:
        """For a split view: which line of a change became which; None opposite one without.

        Args:
          budget: what may be spent on it, for who asks for the pairs of many changes.
        """
        if len(change.old) == len(change.new):
            return list(zip(change.old, change.new, strict=True))
        names = [
            [name_of(side.lines[n], self.kind) or "" for n in numbers]
            for side, numbers in ((self.old, change.old), (self.new, change.new))
        ]
        found: list[tuple[int | None, int | None]] = []
        i, j = change.old.start, change.new.start
        blocks = (budget or Budget()).close(names[0], names[1])
        for a, b, size in [*blocks, (len(names[0]), len(names[1]), 0)]:
            a, b = change.old.start + a, change.new.start + b
            found += [(k, None) for k in range(i, a)] + [(None, k) for k in range(j, b)]
            found += [(a + k, b + k) for k in range(size)]
            i, j = a + size, b + size
        return found

    def place(self, hunk: Sequence[Change]) -> str:
        """Where a hunk stands in the whole texts: `@@ -3,7 +3,9 @@`."""
        return f"@@ -{_place(self.old, hunk, 'old')} +{_place(self.new, hunk, 'new')} @@"

    def unified(self, old: str, new: str, context: int = CONTEXT) -> Iterator[str]:
        """Lines as `diff -u` prints them; line numbers are those of the whole texts."""
        for number, hunk in enumerate(self.hunks(context)):
            if number == 0:
                yield f"--- {old}"
                yield f"+++ {new}"
            yield self.place(hunk)
            for change in hunk:
                if change.tag == "equal":
                    yield from (f" {self.new.lines[n]}" for n in change.new)
                    continue
                yield from (f"-{self.old.lines[n]}" for n in change.old)
                yield from (f"+{self.new.lines[n]}" for n in change.new)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a pass did, by counts: for each operation, how many there were and are."""

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def changed(self) -> dict[str, tuple[int, int]]:
        """The operations that became more or fewer, the greatest change first."""
        rows = [(name, pair) for name, pair in self.counts.items() if pair[0] != pair[1]]
        return dict(sorted(rows, key=lambda row: (-abs(row[1][1] - row[1][0]), row[0])))


def summary(old: Module, new: Module) -> Summary:
    """The operations of two modules, counted."""
    names = sorted(old.counts.keys() | new.counts.keys())
    return Summary(counts={n: (old.counts[n], new.counts[n]) for n in names})


def diff(
    old: Sequence[str],
    new: Sequence[str],
    *,
    ignore: Collection[Noise] = (),
    kind: Kind | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Diff:
    """What changed from `old` to `new`, both lines without newlines.

    Args:
      ignore: noise that is no change. Lines that are noise alone take no part.
      kind: what the texts are; guessed from `new` unless given.
      tick: called between the steps of the work; what it raises ends it.
    """
    kind = kind or guess_kind("\n".join(new[:60]))
    keys = [normal_lines(lines, kind, ignore) for lines in (old, new)]
    sides = []
    for lines, normal in zip((old, new), keys, strict=True):
        if normal is lines or None not in normal:
            sides.append(Side(lines=lines, numbers=range(len(lines))))
        else:
            numbers = [n for n, key in enumerate(normal) if key is not None]
            sides.append(Side(lines=[lines[n] for n in numbers], numbers=numbers))
    shown = [[key for key in normal if key is not None] for normal in keys]
    if "ssa" in ignore:
        values = [value_names(side.lines, kind) for side in sides]
        blocks = _match_values(shown, values)
        blocks = _same_values(shown, values, blocks)
    else:
        blocks = match(shown[0], shown[1])
    changes = tuple(_changes(blocks, len(shown[0]), len(shown[1])))
    return Diff(old=sides[0], new=sides[1], changes=changes, kind=kind)


def words(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where two lines differ: spans of characters of the old one and of the new one."""
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    middle = a[head : len(a) - tail], b[head : len(b) - tail]
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    starts = [sum(map(len, a[:head]))] * 2
    for tag, i, j, k, m in _word_opcodes(*middle):
        for side, (texts, first, last) in enumerate(((middle[0], i, j), (middle[1], k, m))):
            length = sum(map(len, texts[first:last]))
            if tag != "equal" and length:
                spans[side].append((starts[side], starts[side] + length))
            starts[side] += length
    return spans


def _word_opcodes(a: list[str], b: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Which words became which. The longest runs in common read best, and take long to find."""
    if max(len(a), len(b)) > _MANY_WORDS:
        return [("replace", 0, len(a), 0, len(b))]
    if len(a) * len(b) < _FEW_PAIRS:
        return list(difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes())
    changes = _changes(Budget().close(a, b), len(a), len(b))
    return [(c.tag, c.old.start, c.old.stop, c.new.start, c.new.stop) for c in changes]


def _cut(change: Change, start: int, stop: int) -> list[Change]:
    if start >= stop:
        return []
    return [Change(tag=change.tag, old=change.old[start:stop], new=change.new[start:stop])]


def _place(side: Side, hunk: Sequence[Change], which: Literal["old", "new"]) -> str:
    ranges = [c.old if which == "old" else c.new for c in hunk]
    start, stop = ranges[0].start, ranges[-1].stop
    if start == stop:  # as diff does: the line before
        return f"{side.numbers[start - 1] + 1 if start else 0},0"
    first, last = side.numbers[start], side.numbers[stop - 1]
    return f"{first + 1},{last - first + 1}"


def _changes(blocks: Sequence[Block], old_size: int, new_size: int) -> Iterator[Change]:
    i = j = 0
    for a, b, size in [*blocks, (old_size, new_size, 0)]:
        if i < a or j < b:
            tag: Tag = "replace" if i < a and j < b else "delete" if i < a else "insert"
            yield Change(tag=tag, old=range(i, a), new=range(j, b))
        if size:
            yield Change(tag="equal", old=range(a, a + size), new=range(b, b + size))
        i, j = a + size, b + size


def _match_values(keys: Sequence[Sequence[str]], values: Sequence[ValueNames]) -> list[Block]:
    """Blocks of lines that are equal but for the names of values.

    First the lines that compute the same from the same, which the whole chain of definitions
    tells; in the gaps the lines that do so from equal operands; then the lines by themselves.
    """
    a, b = (_computed(*side) for side in zip(keys, values, strict=True))
    budget = Budget()
    blocks = patience(a[0], b[0])
    for near in (1, 2):
        blocks = refined(blocks, (a[near], b[near]), patience)
    return refined(blocks, (a[2], b[2]), budget.close)


def _computed(keys: Sequence[str], values: ValueNames) -> tuple[array[int], array[int], array[int]]:
    """Hashes per line: of all that it computes; of it and its operands' lines; of it alone."""
    whole, single, lines = _Unknown(), _Zero(), _Lines()
    deeply, nearly, all_alone = array("q"), array("q"), array("q")
    of_whole, of_single = whole.__getitem__, single.__getitem__
    for key, names in zip(keys, values, strict=True):
        alone, defined = lines[key]
        operands = names[defined:]
        deep = hash((alone, *map(of_whole, operands)))
        deeply.append(deep)
        nearly.append(hash((alone, *map(of_single, operands))))
        all_alone.append(alone)
        for position, name in enumerate(names[:defined]):
            whole[name], single[name] = deep + position, alone + position
    return deeply, nearly, all_alone


class _Unknown(dict[str, int]):
    """What a value is that no line defines: no more than how its name begins tells."""

    def __missing__(self, name: str) -> int:
        return hash(name[:4])


class _Zero(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 0


class _Lines(dict[str, tuple[int, int]]):
    """The hash of a line, and how many results it has. Without names most lines occur often."""

    def __missing__(self, key: str) -> tuple[int, int]:
        found = self[key] = hash(key), _results(key)
        return found


def _results(key: str) -> int:
    """How many of a line's values are its results: `%, %:2 = …`, `%:f32[8] <- …`."""
    head, found, _ = key.partition(" = ")
    if not found:
        head, found, _ = key.partition(" <- ")
    if not found or not head.lstrip().startswith("%"):
        return 0
    return head.count("%:") or head.count("%")


def _same_values(
    keys: Sequence[Sequence[str]], values: Sequence[ValueNames], blocks: Sequence[Block]
) -> list[Block]:
    """The blocks without the lines whose operands are others than before, whatever their names.

    Which new name an old one has, the matched lines tell that define it; for what is defined in
    lines that changed, the first matched line that uses it.
    """
    names, results = _Names(), _Lines()
    there = names.there
    kept: list[Block] = []
    i = j = 0
    for a, b, size in blocks:
        for side, first, last in ((0, i, a), (1, j, b)):
            for n in range(first, last):
                names.forget(side, values[side][n][: results[keys[side][n]][1]])
        first = 0  # of a run of lines that are the same
        for k in range(size):
            old, new = values[0][a + k], values[1][b + k]
            defined = results[keys[1][b + k]][1]
            operands = old[defined:], new[defined:]
            # Most operands are as they were known to be: that is seen at once.
            same = tuple(map(there.get, operands[0])) == operands[1] or names.agree(*operands)
            if defined:
                names.define(old[:defined], new[:defined])
            if not same:
                kept.append((a + first, b + first, k - first))
                first = k + 1
        kept.append((a + first, b + first, size - first))
        i, j = a + size, b + size
    return joined([block for block in kept if block[2]])


class _Names:
    """Which old name is which new one, so far."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def agree(self, old: Sequence[str], new: Sequence[str]) -> bool:
        """Whether the names may stand for each other; those unknown so far do from now on."""
        there, back = self.there, self._back
        for a, b in zip(old, new, strict=False):
            if there.get(a, b) != b or back.get(b, a) != a:
                return False
        self.define(old, new)
        return True

    def define(self, old: Sequence[str], new: Sequence[str]) -> None:
        there, back = self.there, self._back
        for a, b in zip(old, new, strict=False):
            back.pop(there.get(a, ""), None)  # a name that is used again means another value
            there.pop(back.get(b, ""), None)
            there[a], back[b] = b, a

    def forget(self, side: int, names: Sequence[str]) -> None:
        """A line that has no counterpart defines them anew."""
        here, there = (self.there, self._back) if side == 0 else (self._back, self.there)
        for name in names:
            there.pop(here.pop(name, ""), None)
