"""Diff of two texts, below the operations that it removes and adds.

Signs in front of lines and reversed words mark the changes; colour only helps.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Event
from typing import TYPE_CHECKING, Literal

from textual import work
from textual.strip import Strip

from pallas_debug.findings.facts import line_text
from pallas_debug.ir.operations import NOISE, Module, name_of, read_line
from pallas_debug.model import SourceLine
from pallas_debug.tui.widgets.cells import (
    MAX_LINE,
    Cells,
    fitted,
    marked,
    plain,
    spans,
    visible,
    without_locations,
)
from pallas_debug.tui.widgets.find import FindView
from pallas_debug.tui.widgets.lineview import ViewMessage

if TYPE_CHECKING:
    from pallas_debug.ir import diff as engine

AT_ONCE = 200_000
"""Maximum total size in bytes to compare before drawing, which takes about 10 ms."""

MAX_BYTES = 16_000_000
"""Maximum size in bytes of a text to compare."""

MAX_OPERATIONS = 6
"""Maximum number of operations listed at first."""

Tag = Literal["labels", "operation", "more", "growth", "hunk", "equal", "removed", "added", "note"]
Spans = list[tuple[int, int]]

HEAD: tuple[Tag, ...] = ("labels", "operation", "more", "growth")
"""Tags of the rows above the changes, which are not panned."""

SIGNS: dict[Tag, str] = {"removed": "-", "added": "+"}

STYLES: dict[Tag, str] = {
    "hunk": "bold text-secondary",
    "note": "italic",
    "removed": "text-error",
    "added": "text-success",
}

_BAR = 30
"""Cells of the longest bar."""

_RESULT = re.compile(r"%[\w$.-]+(?=(?::\d+)?(?:, %[\w$.:-]+)* = )")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRow:
    """Row of a diff.

    Attributes:
      old, new: indices in the diff's `old.lines` and `new.lines`; both are set for a line that is
        compared by words with its counterpart.
      text: text of a `hunk` or `note`; name of an `operation`.
    """

    tag: Tag
    old: int | None = None
    new: int | None = None
    text: str = ""


class DiffRows:
    """Rows of a diff. Expensive steps are done on construction.

    Args:
      texts: the lines of both texts.

    Attributes:
      removed, added: number of removed and added lines by operation.
      growth: Python line from which the new text has most operations more, and how many; or None.
    """

    def __init__(self, diff: engine.Diff, texts: Sequence[Sequence[str]]) -> None:
        from pallas_debug.ir.match import Budget

        self.diff = diff
        self._modules = [Module(lines, diff.kind) for lines in texts]
        budget = Budget()
        # For each change, by its start, the pairs of old and new lines.
        self._pairs = {
            (c.old.start, c.new.start): diff.pairs(c, budget)
            for c in diff.changes
            if c.tag == "replace"
        }
        self.words = lru_cache(maxsize=4096)(self._words)
        self.names = lru_cache(maxsize=4096)(self._names)
        self.removed, self.added = (
            Counter(name for text in texts for name in self.names(text))
            for texts in self._changed()
        )
        self.growth = self._growth()

    def operations(self) -> list[str]:
        """Return the operations that the changes remove or add, the largest differences first."""
        removed, added = self.removed, self.added
        return sorted(
            removed | added,
            key=lambda name: (
                -abs(added[name] - removed[name]),
                -removed[name] - added[name],
                name,
            ),
        )

    def rows(self, only: str | None = None) -> list[DiffRow]:
        """Return the changes, with some lines around them.

        Args:
          only: operation that a hunk must remove or add.
        """
        found: list[DiffRow] = []
        for hunk in self.diff.hunks():
            rows = [row for change in hunk for row in self._unified(change)]
            if only is None or any(
                row.tag in SIGNS and only in self.names(self.text(row)) for row in rows
            ):
                found += [DiffRow(tag="hunk", text=self.diff.place(hunk)), *rows]
        return found

    def text(self, row: DiffRow) -> str:
        """Return the text of a row."""
        old, new = self.diff.old.lines, self.diff.new.lines
        if row.tag == "removed":
            return old[row.old or 0]
        return row.text if row.new is None else new[row.new]

    def shown(self, row: DiffRow) -> str:
        """Return the text of a line as it is drawn, without locations."""
        return plain(without_locations(spans(self.text(row)[:MAX_LINE])))

    def source(self, row: DiffRow) -> SourceLine | None:
        """Return the innermost Python line of a removed or added line."""
        is_old = row.tag == "removed"
        side, at = (self.diff.old, row.old) if is_old else (self.diff.new, row.new)
        module = self._modules[not is_old]
        if at is None or self.diff.kind == "bundles":
            return None
        return next(iter(module.source(side.numbers[at])), None)

    def _changed(self) -> Iterator[list[str]]:
        """Yield the removed lines, and the added ones."""
        changes = [c for c in self.diff.changes if c.tag != "equal"]
        yield [self.diff.old.lines[n] for c in changes for n in c.old]
        yield [self.diff.new.lines[n] for c in changes for n in c.new]

    def _names(self, text: str) -> tuple[str, ...]:
        if self.diff.kind == "bundles":
            return tuple(operation.name for operation in read_line(text, "bundles"))
        name = name_of(text, self.diff.kind)
        return (name,) if name is not None else ()

    def _growth(self) -> tuple[SourceLine, int] | None:
        counts: Counter[tuple[str, int]] = Counter()
        lines: dict[tuple[str, int], SourceLine] = {}
        for change in self.diff.changes:
            for row in self._unified(change) if change.tag != "equal" else ():
                if self.names(self.text(row)) and (source := self.source(row)):
                    counts[source.place] += 1 if row.tag == "added" else -1
                    lines[source.place] = source
        for place, count in counts.most_common(1):
            if count > 0:
                return lines[place], count
        return None

    def has_grown(self, row: DiffRow) -> bool:
        """Return whether an added line comes from the Python line of `growth`."""
        if self.growth is None or (source := self.source(row)) is None:
            return False
        return source.place == self.growth[0].place

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """Names of values in the new text, by their names in the old one."""
        found: dict[str, str] = {}
        old, new = self.diff.old.lines, self.diff.new.lines
        for change in self.diff.changes:
            for a, b in self._paired(change):
                if a is not None and b is not None:
                    found.update(zip(self._results(old[a]), self._results(new[b])))  # noqa: B905
        return found

    def _results(self, text: str) -> list[str]:
        if self.diff.kind != "jaxpr":
            return _RESULT.findall(text)
        return [value.name for o in read_line(text, "jaxpr") for value in o.results]

    def _words(self, old: int, new: int) -> tuple[Spans, Spans]:
        from pallas_debug.ir import diff as engine

        a = self.shown(DiffRow(tag="removed", old=old))
        return engine.words(a, self.shown(DiffRow(tag="added", new=new)), self._renamed)

    def _paired(self, change: engine.Change) -> Sequence[tuple[int | None, int | None]]:
        if change.tag == "equal":
            return list(zip(change.old, change.new, strict=True))
        if change.tag == "delete":
            return [(n, None) for n in change.old]
        if change.tag == "insert":
            return [(None, n) for n in change.new]
        return self._pairs[change.old.start, change.new.start]

    def _unified(self, change: engine.Change) -> Iterator[DiffRow]:
        pairs = self._paired(change)
        if change.tag == "equal":
            yield from (DiffRow(tag="equal", old=a, new=b) for a, b in pairs)
            return
        yield from (DiffRow(tag="removed", old=a, new=b) for a, b in pairs if a is not None)
        yield from (DiffRow(tag="added", old=a, new=b) for a, b in pairs if b is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One of the two texts of a diff.

    Attributes:
      label: name on the screen.
      size: size in bytes.
      read: returns the lines without newlines; called in a thread if the texts are large.
    """

    label: str
    size: int
    read: Callable[[], Sequence[str]]


class _Stopped(Exception):
    """Another diff is wanted."""


class DiffPane(FindView):
    """Pane with the diff of two texts."""

    class DiffChanged(ViewMessage):
        """Message: the diff changed, or is being computed: `state`, `count`."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._texts: tuple[Compared, ...] = ()
        self._read: Callable[[], tuple[Sequence[str], Sequence[str]]] = lambda: ((), ())
        self._diff: DiffRows | None = None
        self._shown: list[DiffRow] = []
        self._stop = Event()
        self._note = ""
        self._only: str | None = None
        self._lists_all = False

    @property
    def count(self) -> int:
        return len(self._shown)

    def compare(self, old: Compared, new: Compared) -> None:
        """Show the changes from one text to another."""
        self._texts = (old, new)
        self._read = lambda: (old.read(), new.read())
        self._compare()

    @property
    def labels(self) -> tuple[str, str]:
        if not self._texts:
            return "", ""
        old, new = self._texts
        return old.label, new.label

    @property
    def comparing(self) -> bool:
        """True if the diff is being computed."""
        return not self._diff and not self._note

    @property
    def state(self) -> str:
        """Summary such as `-12 +8 lines`, or the progress of the diff."""
        if self._diff is None:
            return self._note or "diffing…"
        return f"-{self._diff.diff.removed:,} +{self._diff.diff.added:,} lines"

    @property
    def place(self) -> tuple[int | None, int | None]:
        """Lines of the old and new text, from 0, under the cursor."""
        if self._diff is None or not self._shown:
            return None, None
        row, found = self._shown[self.cursor], self._diff.diff
        old = None if row.old is None or row.tag == "added" else found.old.numbers[row.old]
        new = None if row.new is None or row.tag == "removed" else found.new.numbers[row.new]
        return old, new

    def next_hunk(self, direction: int) -> None:
        """Move the cursor to the start of the next or previous change."""
        starts = [
            at
            for at, (before, row) in enumerate(itertools.pairwise([None, *self._shown]))
            if row and row.tag in SIGNS and (before is None or before.tag not in SIGNS)
        ]
        if direction > 0:
            found = next((at for at in starts if at > self.cursor), None)
        else:
            found = next((at for at in reversed(starts) if at < self.cursor), None)
        if found is not None:
            self.cursor = found

    # Computing the diff.

    def on_mount(self) -> None:
        self._compare()

    def _compare(self) -> None:
        self._stop.set()
        if not self.is_running or not self._texts:
            return
        self._stop = Event()
        self._diff, self._note = None, ""
        for text in self._texts:
            if text.size > MAX_BYTES:
                self._show_note(
                    f"{text.label} has {text.size / 1e6:,.0f} MB; the limit here is "
                    f"{MAX_BYTES / 1e6:,.0f} MB. Use `pallas-debug diff` for larger texts."
                )
                return
        if sum(text.size for text in self._texts) <= AT_ONCE:
            self._diff = self._make(self._stop)
            self._arrange()
        else:
            self._show([DiffRow(tag="note", text=f"diffing {' with '.join(self.labels)}…")])
            self._compare_in_background(self._stop)

    @work(exclusive=True, group="diff")
    async def _compare_in_background(self, stop: Event) -> None:
        try:
            made = await asyncio.to_thread(self._make, stop)
        except _Stopped:
            return
        if not stop.is_set():
            self._diff = made
            self._arrange()

    def _make(self, stop: Event) -> DiffRows:
        from pallas_debug.ir import diff as engine

        def tick() -> None:
            if stop.is_set():
                raise _Stopped

        texts = self._read()
        tick()
        return DiffRows(engine.diff(*texts, ignore=NOISE, tick=tick), texts)

    def _show_note(self, note: str) -> None:
        self._note = note
        self._show([DiffRow(tag="note", text=note)])

    def _arrange(self) -> None:
        """Show the diff, with the cursor where the text grew most, or on the first change."""
        if self._diff is None:
            return
        self._only, self._lists_all = None, False
        self._make_rows()
        added = [n for n, row in enumerate(self._shown) if row.tag == "added"]
        grown = [n for n in added if self._diff.has_grown(self._shown[n])]
        changes = [n for n, row in enumerate(self._shown) if row.tag in SIGNS]
        self.cursor = next(iter(grown or changes), 0)
        top = self.cursor - self.frozen - (self.room - self.frozen) // 3  # with its context
        self.scroll_to(y=max(top, 0), animate=False, force=True)

    def _make_rows(self) -> None:
        """Create the rows: the labels, the operations, and the changes that are not filtered."""
        assert self._diff is not None
        changes = self._diff.rows(self._only)
        from pallas_debug.ir import diff as engine

        old, new = self.labels
        if not changes:
            noise = "value numbers, locations and the order of attributes"
            same = f"{new} is the same as {old} except for {noise}."
            self._show([DiffRow(tag="note", text=same)])
            return
        operations = self._diff.operations()
        listed = operations if self._lists_all else operations[:MAX_OPERATIONS]
        head = [DiffRow(tag="labels", text=engine.sides(old, new))]
        head += [DiffRow(tag="operation", text=name) for name in listed]
        if rest := len(operations) - len(listed):
            head.append(DiffRow(tag="more", text=f"  {rest} more operations"))
        if self._diff.growth is not None:
            source, count = self._diff.growth
            text = f"  most added by {line_text(source)}: +{count:,}"
            head.append(DiffRow(tag="growth", text=text))
        self._show([*head, *changes])

    def choose(self) -> None:
        """Show only the changes of the operation under the cursor, or all again."""
        row = self._shown[self.cursor] if self._shown else None
        if self._diff is None or row is None or row.tag not in ("operation", "more"):
            return
        at = self.cursor
        if row.tag == "more":
            self._lists_all = True
        else:
            self._only = None if self._only == row.text else row.text
        self._make_rows()
        self.cursor = at

    def _show(self, rows: list[DiffRow]) -> None:
        self._shown = rows
        self.lines = [row.text if self._diff is None else self._diff.text(row) for row in rows]
        self.set_reactive(DiffPane.panned, 0)
        self.changed(keep=0)
        self.find()
        self.post_message(self.DiffChanged(self))

    # Drawing.

    @property
    def frozen(self) -> int:
        head = next((n for n, row in enumerate(self._shown) if row.tag == "hunk"), 0)
        return head if 2 * head <= self.room else 0

    def watch_cursor(self, before: int, after: int) -> None:
        self._pan_to_change()
        super().watch_cursor(before, after)

    def _pan_to_change(self) -> None:
        """Pan so that a change under the cursor is visible."""
        row = self._shown[self.cursor] if self.cursor < self.count else None
        if self._diff is None or row is None or row.tag not in SIGNS:
            return
        marks = self._words_of(row)
        room = self.columns - len(plain(self.prefix(self.cursor)))
        seen = range(self.panned, self.panned + room - 1)
        if not marks or not seen:  # the pane may not have been laid out yet
            self.panned = 0
        elif not any(start in seen for start, _ in marks):
            start, stop = marks[0]
            self.panned = 0 if stop < room else max(start - room // 4, 0)

    def _words_of(self, row: DiffRow) -> Spans:
        """Return the changed words of a line; none if it has no counterpart."""
        if self._diff is None or row.old is None or row.new is None:
            return []
        return self._diff.words(row.old, row.new)[row.tag == "added"]

    def strip_of(self, line: int) -> Strip:
        if self._shown[line].tag not in HEAD:
            return super().strip_of(line)
        return self.column(self.cells(line), [], self.base_of(line))

    def prefix(self, line: int) -> Cells:
        row = self._shown[line]
        if self._diff is None or (row.old is None and row.new is None):
            return []
        old, new = self._diff.diff.old, self._diff.diff.new
        numbers = [
            self._number(old.numbers, None if row.tag == "added" else row.old),
            self._number(new.numbers, None if row.tag == "removed" else row.new),
        ]
        sign = SIGNS.get(row.tag, " ")
        return [(" ".join(numbers) + " ", "text-muted"), (sign, STYLES.get(row.tag, ""))]

    def cells(self, line: int) -> Cells:
        row = self._shown[line]
        if self._diff is None or row.tag in ("hunk", "note", "more", "growth"):
            return marked([(row.text, STYLES.get(row.tag, ""))], self.found_in(row.text))
        if row.tag == "labels":
            old, new = self.labels
            return [(f"- {old}", STYLES["removed"]), (f"   + {new}", STYLES["added"])]
        if row.tag == "operation":
            return self._operation(row.text)
        text = self._diff.shown(row)
        style = STYLES.get(row.tag, "")
        words = [(start, stop, f"reverse {style}") for start, stop in self._words_of(row)]
        cells = marked(marked([(text, style)], words), self.found_in(text))
        rest = len(self._diff.text(row)) - MAX_LINE
        return cells if rest <= 0 else [*cells, (f" … {rest:,} more characters", "italic")]

    def _operation(self, name: str) -> Cells:
        """Return the row of an operation: how many lines with it are removed and added."""
        assert self._diff is not None
        removed, added = self._diff.removed, self._diff.added
        largest = max((removed + added).values())
        widest = max(len(row.text) for row in self._shown if row.tag == "operation")
        bars = ["█" * -(-n * _BAR // largest) for n in (removed[name], added[name])]
        counts = [
            f"{sign}{n:,}" if n else "" for sign, n in (("-", removed[name]), ("+", added[name]))
        ]
        is_chosen = name == self._only
        return [
            ("▸ " if is_chosen else "  ", "bold text-warning"),
            (fitted(visible(name), min(widest, 32)), "bold text-warning" if is_chosen else ""),
            (f"{counts[0]:>8}", "text-error"),
            (f"{counts[1]:>8}  ", "text-success"),
            (bars[0], "text-error"),
            (bars[1], "text-success"),
        ]

    def _number(self, numbers: Sequence[int], at: int | None) -> str:
        assert self._diff is not None
        found = self._diff.diff
        width = max(
            len(str(side.numbers[-1] + 1 if side.numbers else 1)) for side in (found.old, found.new)
        )
        return " " * width if at is None else f"{numbers[at] + 1:>{width}}"
