"""What changed between two texts: unified, or side by side where there is room.

Signs in front of lines and reversed words within them tell what changed; colour only helps.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Event
from typing import ClassVar

from rich.style import Style
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from pallas_debug.ir import diff as engine
from pallas_debug.ir.normal import NOISE, Noise
from pallas_debug.ir.operations import Kind
from pallas_debug.tui import highlight
from pallas_debug.tui.diffrows import DiffRows, Row, Tag
from pallas_debug.tui.find import FindView
from pallas_debug.tui.lines import LONGEST, ListLines
from pallas_debug.tui.lineview import Cells

SPLIT = 140
"""Columns from which on old and new stand side by side unless asked otherwise."""

AT_ONCE = 200_000
"""Bytes of both texts up to which they are compared before anything is drawn: some 10 ms."""

LARGEST = 16_000_000
"""Bytes of a text up to which it is compared here."""

SIGNS: dict[Tag, str] = {"removed": "-", "added": "+", "changed": "~"}

_SEPARATOR = "│"


class _Stopped(Exception):
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A text of the two.

    Attributes:
      label: what to call it.
      size: bytes.
      read: gives its lines without newlines; called in a thread if there are many bytes.
    """

    label: str
    size: int
    read: Callable[[], Sequence[str]]


_Read = Callable[[], tuple[Sequence[str], Sequence[str]]]


class DiffPane(FindView):
    """A diff of two texts."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "diff--number",
        "diff--hit",
        "diff--hunk",
        "diff--note",
        "diff--removed",
        "diff--added",
        "diff--removed-word",
        "diff--added-word",
        *(f"diff--{kind}" for kind in highlight.KINDS),
    }
    DEFAULT_CSS = """
    DiffPane {
        & .diff--number { text-style: dim; }
        & .diff--hit { background: $warning; color: $background; text-style: bold; }
        & .diff--hunk { color: $text-secondary; text-style: bold; }
        & .diff--note { text-style: italic; }
        & .diff--removed { color: $text-error; }
        & .diff--added { color: $text-success; }
        & .diff--removed-word { color: $text-error; text-style: reverse; }
        & .diff--added-word { color: $text-success; text-style: reverse; }
        & .diff--comment { text-style: dim italic; }
        & .diff--location { text-style: dim; }
        & .diff--operation { text-style: bold; }
        &:nocolor .diff--hit { text-style: bold reverse underline; }
    }
    """

    ignore: reactive[tuple[Noise, ...]] = reactive(NOISE)
    """Noise that is no change."""
    whole: reactive[bool] = reactive(False)
    """Whether all lines are shown, and not just the changes with some lines around them."""
    split: reactive[bool | None] = reactive(None)
    """Whether old and new stand side by side; as the width has it where that is None."""

    class Changed(Message):
        """Another diff is there, or is being made: `state`, `count`."""

        def __init__(self, view: DiffPane) -> None:
            self.view = view
            super().__init__()

        @property
        def control(self) -> DiffPane:
            return self.view

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._texts: tuple[Compared, ...] = ()
        self._labels = ("", "")
        self._read: _Read = lambda: ((), ())
        self._kind: Kind | None = None
        self._diff: DiffRows | None = None
        self._shown: list[Row] = []
        self._is_split = False
        self._stop = Event()
        self._note = ""

    @property
    def count(self) -> int:
        return len(self._shown)

    def compare(self, old: Compared, new: Compared, *, kind: Kind | None = None) -> None:
        """Show what changed from one text to another.

        Args:
          kind: what the texts are; guessed unless given.
        """
        self._texts, self._labels, self._kind = (old, new), (old.label, new.label), kind
        # What was read stays, to be compared otherwise; a text that changes is another one.
        self._read = functools.cache(lambda: (old.read(), new.read()))
        self._compare()

    @property
    def labels(self) -> tuple[str, str]:
        return self._labels

    @property
    def comparing(self) -> bool:
        """Whether the diff is still being made."""
        return not self._diff and not self._note

    @property
    def state(self) -> str:
        """`12 lines removed, 8 added` or what is going on."""
        if self._diff is None:
            return self._note or "diffing…"
        ignored = f", ignoring {', '.join(self.ignore)}" if self.ignore else ""
        found = self._diff.diff
        return f"-{found.removed:,} +{found.added:,} lines{ignored}"

    @property
    def is_split(self) -> bool:
        """Whether old and new stand side by side."""
        return self.size.width >= SPLIT if self.split is None else self.split

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The lines of the old and of the new text, from 0, that the cursor stands on."""
        if self._diff is None or not self._shown:
            return None, None
        row, found = self._shown[self.cursor], self._diff.diff
        old = None if row.old is None or row.tag == "added" else found.old.numbers[row.old]
        new = None if row.new is None or row.tag == "removed" else found.new.numbers[row.new]
        return old, new

    # What a person asks for.

    def toggle_noise(self) -> None:
        """Count all noise as change, or none: numbers of values, locations, order of attributes."""
        self.ignore = () if self.ignore else NOISE

    def toggle_whole(self) -> None:
        """Show all lines, or the changes with some lines around them."""
        self.whole = not self.whole

    def toggle_split(self) -> None:
        """Old and new side by side, or one below the other."""
        self.split = not self.is_split

    def next_hunk(self, direction: int) -> None:
        """Put the cursor on the next row where a change begins, or the previous one."""
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

    def stop(self) -> bool:
        """Give up a diff that is being made; whether there was one."""
        if not self.comparing:
            return False
        self._stop.set()
        self._say(f"Stopped comparing {self._labels[0]} with {self._labels[1]}.")
        return True

    # How it is done.

    def watch_ignore(self) -> None:
        self._compare()

    def watch_whole(self) -> None:
        self._arrange(keep=True)

    def watch_split(self) -> None:
        self._arrange(keep=True)

    def on_mount(self) -> None:
        self._compare()

    def on_resize(self) -> None:
        if self.is_split != self._is_split:
            self._arrange(keep=True)
        self.changed()

    def _compare(self) -> None:
        self._stop.set()
        if not self.is_running or not any(self._labels):
            return
        self._stop = Event()
        self._diff, self._note = None, ""
        for text in self._texts:
            if text.size > LARGEST:
                self._say(
                    f"{text.label} has {text.size / 1e6:,.0f} MB; texts of up to "
                    f"{LARGEST / 1e6:,.0f} MB are compared here. "
                    "`pallas-debug diff` compares larger ones."
                )
                return
        make = partial(self._make, self._read, self._stop)
        if sum(text.size for text in self._texts) <= AT_ONCE:
            self._made(make())
        else:
            self._show([Row(tag="note", text=f"diffing {' with '.join(self._labels)}…")])
            self.aside(partial(self._make_aside, make, self._stop), "diff")

    async def _make_aside(self, make: Callable[[], DiffRows], stop: Event) -> None:
        try:
            made = await asyncio.to_thread(make)
        except _Stopped:
            return
        if not stop.is_set():
            self._made(made)

    def _make(self, read: _Read, stop: Event) -> DiffRows:
        def tick() -> None:
            if stop.is_set():
                raise _Stopped

        old, new = read()
        tick()
        return DiffRows(engine.diff(old, new, ignore=self.ignore, kind=self._kind, tick=tick))

    def _made(self, made: DiffRows) -> None:
        self._diff = made
        self._arrange()

    def _say(self, note: str) -> None:
        self._note = note
        self._show([Row(tag="note", text=note)])

    def _arrange(self, *, keep: bool = False) -> None:
        """The rows anew, with the cursor on the line that it was on, or on the first change."""
        if self._diff is None:
            return
        at = self.place if keep else None
        self._is_split = self.is_split
        rows = self._diff.rows(split=self._is_split, whole=self.whole)
        self._show(rows or [Row(tag="note", text=self._same)])
        if at is None:
            self.cursor = next((n for n, row in enumerate(rows) if row.tag in SIGNS), 0)
        else:
            self.cursor = self._nearest(self._diff.diff, *at)

    @property
    def _same(self) -> str:
        old, new = self._labels
        less = " but for numbers of values, locations and the order of attributes"
        return f"{new} is as {old}{less if self.ignore else ''}."

    def _nearest(self, diff: engine.Diff, old: int | None, new: int | None) -> int:
        """The first row at or behind a line of the new text, or of the old one."""
        is_new = new is not None
        numbers, line = (diff.new.numbers, new) if is_new else (diff.old.numbers, old)
        for position, row in enumerate(self._shown):
            at = row.new if is_new else row.old
            other: Tag = "removed" if is_new else "added"
            if line is not None and at is not None and row.tag != other and numbers[at] >= line:
                return position
        return 0

    def _show(self, rows: list[Row]) -> None:
        self._shown = rows
        texts = [row.text if self._diff is None else self._diff.text(row) for row in rows]
        self.source = ListLines(texts)
        self.changed(keep=0)
        self._search_again()
        self.post_message(self.Changed(self))

    # A row.

    def prefix(self, line: int) -> Cells:
        row = self._shown[line]
        if self._diff is None or row.tag in ("hunk", "note"):
            return []
        old, new = self._diff.diff.old, self._diff.diff.new
        numbers = [
            self._number(old.numbers, None if row.tag == "added" else row.old),
            self._number(new.numbers, None if row.tag == "removed" else row.new),
        ]
        sign = SIGNS.get(row.tag, " ")
        return [(" ".join(numbers) + " ", "diff--number"), (sign, self._style_of(row.tag))]

    def cells(self, line: int) -> Cells:
        row = self._shown[line]
        if self._diff is None or row.tag in ("hunk", "note"):
            return self._found(row.text, [(row.text, row.tag)])
        return self._body(row, "old" if row.tag == "removed" else "new")

    def _strips(self, line: int) -> list[Strip]:
        row = self._shown[line]
        if not self._is_split or self._diff is None or row.tag in ("hunk", "note"):
            return super()._strips(line)
        base = self.base_of(line)
        width = (self.columns - 1) // 2
        left = self._half(row, "old", width, base)
        right = self._half(row, "new", self.columns - 1 - width, base)
        middle = self.strip([(_SEPARATOR, "diff--number")], base)
        return [
            Strip.join([a or Strip.blank(width, base), middle, b or Strip.blank(width, base)])
            for a, b in itertools.zip_longest(left, right)
        ]

    def _half(self, row: Row, which: str, width: int, base: Style) -> list[Strip]:
        assert self._diff is not None
        at = row.old if which == "old" else row.new
        if at is None:
            return [Strip.blank(width, base)]
        side = self._diff.diff.old if which == "old" else self._diff.diff.new
        tag: Tag = "equal" if row.tag == "equal" else "removed" if which == "old" else "added"
        before: Cells = [
            (self._number(side.numbers, at) + " ", "diff--number"),
            (SIGNS.get(tag, " "), self._style_of(tag)),
        ]
        return self.column(before, self._body(row, which), width, base)

    def _body(self, row: Row, which: str) -> Cells:
        """The text of a line with what changed in it."""
        assert self._diff is not None
        is_old = which == "old"
        at = row.old if is_old else row.new
        side = self._diff.diff.old if is_old else self._diff.diff.new
        text = side.lines[at or 0]
        rest, text = len(text) - LONGEST, text[:LONGEST]
        if row.tag == "equal":
            parts = highlight.spans(text)
        else:
            kind = "removed" if is_old else "added"
            marks: list[highlight.Mark] = []
            if row.old is not None and row.new is not None:
                spans = self._diff.words(row.old, row.new)[not is_old]
                marks = [(start, stop, f"{kind}-word") for start, stop in spans]
            parts = self._changed(text, kind, marks)
        cells = self._found(text, parts)
        return cells if rest <= 0 else [*cells, (f" … {rest:,} more characters", "diff--note")]

    def _changed(self, text: str, kind: str, marks: Sequence[highlight.Mark]) -> Cells:
        """A changed line. Its locations have not changed, where they are no change."""
        if "loc" not in self.ignore:
            return highlight.marked([(text, kind)], marks)
        parts: Cells = []
        locations: list[tuple[int, int]] = []
        at = 0
        of_location = [(part, what == "location") for part, what in highlight.spans(text)]
        for is_location, group in itertools.groupby(of_location, key=itemgetter(1)):
            part = "".join(part for part, _ in group)
            parts.append((part, "location" if is_location else kind))
            if is_location:
                locations.append((at, at + len(part)))
            at += len(part)
        return highlight.marked(parts, highlight.outside(marks, locations))

    def _found(self, text: str, parts: Sequence[tuple[str, str]]) -> Cells:
        parts = highlight.marked(parts, self.found_in(text))
        if "loc" in self.ignore:
            parts = highlight.without_locations(parts)
        return [(part, self._style_of(kind)) for part, kind in parts]

    def _style_of(self, kind: str) -> str:
        if kind == "changed":
            kind = "added"
        return f"diff--{kind}" if f"diff--{kind}" in self.COMPONENT_CLASSES else ""

    def _number(self, numbers: Sequence[int], at: int | None) -> str:
        assert self._diff is not None
        found = self._diff.diff
        width = max(
            len(str(side.numbers[-1] + 1 if side.numbers else 1)) for side in (found.old, found.new)
        )
        return " " * width if at is None else f"{numbers[at] + 1:>{width}}"
