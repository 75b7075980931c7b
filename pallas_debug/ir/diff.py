"""Diff of two texts: changed lines, changed words within them, counts of operations.

`patiencediff` matches lines, anchored on lines that occur once on each side. If value numbers are
ignored, few lines are unique, so lines are first matched by what they compute: a line together with
the lines that define its operands, and the lines that define theirs. Gaps between these anchors are
matched by the lines alone. A matched line whose operands differ is still a change.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pallas_debug.ir.match import Block, Budget, common_ends, match, patience, refined
from pallas_debug.ir.operations import LONG, Kind, Module, Noise, guess_kind, name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pallas_debug.ir.values import Values

Tag = Literal["equal", "replace", "delete", "insert"]
CONTEXT = 3

_HEAD = 1000
"""Characters of each of the first lines used to guess the kind of text."""

_MANY_WORDS = 1500
_FEW_PAIRS = 10_000
_WORDS = re.compile(r"[%#@$]?[\w.$-]+|\s+|.", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Lines of the old text and the lines of the new text that replace them."""

    tag: Tag
    old: range
    new: range


@dataclass(frozen=True, kw_only=True)
class Side:
    """One text of a diff: the compared lines, and their line numbers (from 0) in the full text."""

    lines: Sequence[str]
    numbers: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Diff:
    """All changes from one text to another, in order; they cover every compared line.

    Ranges in `changes` index `old.lines` and `new.lines`.
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
        """Group nearby changes, with lines of context around them."""
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
        """Pair the lines of a change for a split view, with None opposite an unmatched line.

        Args:
          budget: budget to share among calls for many changes.
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
        """Hunk header with line numbers of the full texts: `@@ -3,7 +3,9 @@`."""
        return f"@@ -{_place(self.old, hunk, 'old')} +{_place(self.new, hunk, 'new')} @@"

    def unified(self, old: str, new: str, context: int = CONTEXT) -> Iterator[str]:
        """Yield lines as `diff -u` prints them, with line numbers of the full texts."""
        for number, hunk in enumerate(self.hunks(context)):
            if number == 0:
                yield f"--- {old}"
                yield f"+++ {new}"
            yield self.place(hunk)
            for change in hunk:
                old_lines = self.old.lines[change.old.start : change.old.stop]
                new_lines = self.new.lines[change.new.start : change.new.stop]
                if change.tag == "equal":
                    yield from map(" ".__add__, new_lines)
                    continue
                yield from map("-".__add__, old_lines)
                yield from map("+".__add__, new_lines)


def changed_operations(old: Module, new: Module) -> dict[str, tuple[int, int]]:
    """Count operations before and after; return those whose counts differ, largest change first."""
    counts = {name: (old.counts[name], new.counts[name]) for name in old.counts | new.counts}
    changed = [(name, pair) for name, pair in counts.items() if pair[0] != pair[1]]
    return dict(sorted(changed, key=lambda row: (-abs(row[1][1] - row[1][0]), row[0])))


def diff(
    old: Sequence[str],
    new: Sequence[str],
    *,
    ignore: Collection[Noise] = (),
    kind: Kind | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Diff:
    """Compute the changes from `old` to `new`, given as lines without newlines.

    Args:
      ignore: noise that does not count as a change. Lines that contain only noise are left out.
      kind: kind of both texts; guessed from `new` by default.
      tick: called between steps; raise from it to cancel.
    """
    kind = kind or guess_kind("\n".join(line[:_HEAD] for line in new[:60]))
    if not ignore:
        sides = [Side(lines=lines, numbers=range(len(lines))) for lines in (old, new)]
        blocks = match(old, new)
    else:
        sides, blocks = _without_noise(old, new, kind, ignore, tick)
    changes = tuple(_changes(blocks, len(sides[0].lines), len(sides[1].lines)))
    return Diff(old=sides[0], new=sides[1], changes=changes, kind=kind)


def sides(old: str, new: str) -> str:
    """Return the line above a diff that names its sides."""
    return f"- {old}   + {new}"


def words(
    old: str, new: str, renamed: Mapping[str, str] = {}
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the character spans in which two lines differ, for the old and the new line.

    Lines longer than `LONG` get a single span, from the first difference to the last.

    Args:
      renamed: names of values in the new text, by their names in the old one.
    """
    if max(len(old), len(new)) > LONG:
        return _middle(old, new)
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    keys = [renamed.get(word, word) for word in a]
    head, tail = common_ends(keys, b)
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    starts = [sum(map(len, side[:head])) for side in (a, b)]
    for tag, i, j, k, m in _word_opcodes(keys[head : len(a) - tail], b[head : len(b) - tail]):
        for side, (texts, first, last) in enumerate(((a[head:], i, j), (b[head:], k, m))):
            length = sum(map(len, texts[first:last]))
            if tag != "equal" and length:
                spans[side].append((starts[side], starts[side] + length))
            starts[side] += length
    return spans


def _middle(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    head = _begin_alike(old, new)
    tail = _begin_alike(old[head:][::-1], new[head:][::-1])
    a, b = ([(head, end)] if head < end else [] for end in (len(old) - tail, len(new) - tail))
    return a, b


def _begin_alike(a: str, b: str) -> int:
    """Length of the common prefix of two texts, by bisection."""
    known, most = 0, min(len(a), len(b))
    while known < most:
        middle = (known + most + 1) // 2
        if a[known:middle] == b[known:middle]:
            known = middle
        else:
            most = middle - 1
    return known


def _word_opcodes(a: list[str], b: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Compute opcodes over words. Longest common runs are the most readable, but slow to find."""
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
    if start == stop:  # like `diff`: the previous line
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


def _without_noise(
    old: Sequence[str],
    new: Sequence[str],
    kind: Kind,
    ignore: Collection[Noise],
    tick: Callable[[], None],
) -> tuple[list[Side], list[Block]]:
    """Drop lines that contain only noise from both texts, and match the rest."""
    import numpy as np  # slow, and not needed for other comparisons

    from pallas_debug.ir.normal import normal_form, stripped
    from pallas_debug.ir.values import Values, same_values

    texts = [stripped(lines, kind, ignore) for lines in (old, new)]
    tick()
    # Equal lines are normalised once.
    numbers: dict[str, int] = {}
    number_of = {}
    for line in dict.fromkeys(itertools.chain(texts[0].lines, texts[1].lines)):
        form = normal_form(line, kind, ignore)
        number_of[line] = -1 if form is None else numbers.setdefault(form, len(numbers))
    results = np.array([_results(form) for form in numbers], np.int64)
    begins = np.array([_begins_block(form) for form in numbers], bool)
    sides, keys, values = [], [], []
    for lines, text in zip((old, new), texts, strict=True):
        key = np.fromiter(map(number_of.__getitem__, text.lines), np.int64, len(lines))
        names, counts, bound = text.names, text.counts, text.bound
        shown = key >= 0
        if shown.all():
            sides.append(Side(lines=lines, numbers=range(len(lines))))
        else:
            places = np.flatnonzero(shown).tolist()
            sides.append(Side(lines=[lines[n] for n in places], numbers=places))
            here = shown.repeat(counts)
            names, bound, counts, key = names[here], bound[here], counts[shown], key[shown]
        arguments = bound & begins[key].repeat(counts)
        values.append(Values(names=names, counts=counts, results=results[key], arguments=arguments))
        keys.append(key)
    tick()
    if "ssa" not in ignore:
        return sides, match(keys[0].tolist(), keys[1].tolist())
    blocks = _match_values(keys, values, tick)
    return sides, same_values(values[0], values[1], blocks)


def _match_values(
    keys: Sequence[NDArray[Any]], values: Sequence[Values], tick: Callable[[], None]
) -> list[Block]:
    """Match lines that are equal except for the names of values.

    First come lines that compute the same from the same operands, as far as definitions show; then
    equal lines in the gaps.
    """
    near = [side.computed(key, _DEPTH).tolist() for key, side in zip(keys, values, strict=True)]
    tick()
    blocks = patience(near[0], near[1])
    tick()
    a, b = (key.tolist() for key in keys)
    blocks = refined(blocks, (a, b), patience)
    tick()
    return refined(blocks, (a, b), Budget().close)


_DEPTH = 2
"""Levels of definitions to follow when comparing lines; more would not match any further lines."""


def _results(form: str) -> int:
    """Number of a line's results: `%, %:2 = …`, `%:f32[8] <- …`."""
    head, found, _ = form.partition(" = ")
    if not found:
        head, found, _ = form.partition(" <- ")
    if not found or not head.lstrip().startswith("%"):
        return 0
    return head.count("%:") or head.count("%")


def _begins_block(form: str) -> bool:
    """Return whether a block with arguments may start: `for % = … {`, `^bb0(%…`, `{ lambda …`."""
    return form.endswith("{") or form.lstrip().startswith("^") or "{ lambda " in form
