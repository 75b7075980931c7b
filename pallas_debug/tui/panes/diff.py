"""Diff of two texts.

Signs in front of lines and reversed words mark the changes; colour only helps.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from threading import Event
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import work
from textual.reactive import reactive

from pallas_debug.ir.operations import NOISE, Noise
from pallas_debug.tui.model.document import MAX_LINE, Lines
from pallas_debug.tui.widgets.cells import (
    KINDS,
    Cells,
    Mark,
    marked,
    outside,
    spans,
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

Tag = Literal["hunk", "equal", "removed", "added", "note"]
Spans = list[tuple[int, int]]

SIGNS: dict[Tag, str] = {"removed": "-", "added": "+"}

_COMPARED = 2 * MAX_LINE
"""Maximum characters of a line to compare by words; more than are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffRow:
    """Row of a diff.

    Attributes:
      old, new: indices in the diff's `old.lines` and `new.lines`; both are set for a line that is
        compared by words with its counterpart.
      text: text of a `hunk` or `note`.
    """

    tag: Tag
    old: int | None = None
    new: int | None = None
    text: str = ""


class DiffRows:
    """Rows of a diff. Expensive steps are done on construction."""

    def __init__(self, diff: engine.Diff) -> None:
        from pallas_debug.ir.match import Budget

        self.diff = diff
        budget = Budget()
        # For each change, by its start, the pairs of old and new lines.
        self._pairs = {
            (c.old.start, c.new.start): diff.pairs(c, budget)
            for c in diff.changes
            if c.tag == "replace"
        }
        self.words = lru_cache(maxsize=4096)(self._words)

    def rows(self) -> list[DiffRow]:
        """Return the changes, with some lines around them."""
        found: list[DiffRow] = []
        for hunk in self.diff.hunks():
            found.append(DiffRow(tag="hunk", text=self.diff.place(hunk)))
            for change in hunk:
                found += self._unified(change)
        return found

    def text(self, row: DiffRow) -> str:
        """Return the text of a row to search in."""
        old, new = self.diff.old.lines, self.diff.new.lines
        if row.tag in ("hunk", "note"):
            return row.text
        if row.tag == "removed":
            return old[row.old or 0]
        return new[row.new or 0]

    def _words(self, old: int, new: int) -> tuple[Spans, Spans]:
        from pallas_debug.ir import diff as engine

        a, b = self.diff.old.lines[old], self.diff.new.lines[new]
        return engine.words(a[:_COMPARED], b[:_COMPARED])

    def _paired(self, change: engine.Change) -> list[tuple[int | None, int | None]]:
        if change.tag == "delete":
            return [(n, None) for n in change.old]
        if change.tag == "insert":
            return [(None, n) for n in change.new]
        return self._pairs[change.old.start, change.new.start]

    def _unified(self, change: engine.Change) -> Iterator[DiffRow]:
        if change.tag == "equal":
            for old, new in zip(change.old, change.new, strict=True):
                yield DiffRow(tag="equal", old=old, new=new)
            return
        pairs = self._paired(change)
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
    pass


class DiffPane(FindView):
    """Pane with the diff of two texts."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "diff--number",
        "diff--hit",
        "diff--hunk",
        "diff--note",
        "diff--removed",
        "diff--added",
        "diff--removed-word",
        "diff--added-word",
        *(f"diff--{kind}" for kind in KINDS),
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
    """Kinds of noise that are not shown as changes."""

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

    @property
    def count(self) -> int:
        return len(self._shown)

    def compare(self, old: Compared, new: Compared) -> None:
        """Show the changes from one text to another."""
        self._texts = (old, new)
        self._read = functools.cache(lambda: (old.read(), new.read()))  # reused with other settings
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
        ignored = f", ignoring {', '.join(self.ignore)}" if self.ignore else ""
        found = self._diff.diff
        return f"-{found.removed:,} +{found.added:,} lines{ignored}"

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

    def stop(self) -> bool:
        """Stop computing the diff; return whether it was being computed."""
        if not self.comparing:
            return False
        self._stop.set()
        old, new = self.labels
        self._show_note(f"Stopped comparing {old} with {new}.")
        return True

    # Computing the diff.

    def watch_ignore(self) -> None:
        self._compare()

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

        old, new = self._read()
        tick()
        return DiffRows(engine.diff(old, new, ignore=self.ignore, tick=tick))

    def _show_note(self, note: str) -> None:
        self._note = note
        self._show([DiffRow(tag="note", text=note)])

    def _arrange(self) -> None:
        """Create the rows, and put the cursor on the first change."""
        if self._diff is None:
            return
        rows = self._diff.rows()
        old, new = self.labels
        noise = " except for value numbers, locations and the order of attributes"
        same = f"{new} is the same as {old}{noise if self.ignore else ''}."
        self._show(rows or [DiffRow(tag="note", text=same)])
        self.cursor = next((n for n, row in enumerate(rows) if row.tag in SIGNS), 0)

    def _show(self, rows: list[DiffRow]) -> None:
        self._shown = rows
        texts = [row.text if self._diff is None else self._diff.text(row) for row in rows]
        self.source = Lines(texts)
        self.changed(keep=0)
        self._search_again()
        self.post_message(self.DiffChanged(self))

    # Drawing.

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
            return self._with_hits(row.text, [(row.text, row.tag)])
        return self._body(row, "old" if row.tag == "removed" else "new")

    def _body(self, row: DiffRow, which: str) -> Cells:
        """Return the text of a line, with its changed words marked."""
        assert self._diff is not None
        is_old = which == "old"
        at = row.old if is_old else row.new
        side = self._diff.diff.old if is_old else self._diff.diff.new
        text = side.lines[at or 0]
        rest, text = len(text) - MAX_LINE, text[:MAX_LINE]
        parts: Cells
        if row.tag == "equal":
            parts = list(spans(text))
        else:
            kind = "removed" if is_old else "added"
            marks: list[Mark] = []
            if row.old is not None and row.new is not None:
                changed = self._diff.words(row.old, row.new)[not is_old]
                marks = [(start, stop, f"{kind}-word") for start, stop in changed]
            parts = self._changed_line(text, kind, marks)
        cells = self._with_hits(text, parts)
        return cells if rest <= 0 else [*cells, (f" … {rest:,} more characters", "diff--note")]

    def _changed_line(self, text: str, kind: str, marks: Sequence[Mark]) -> Cells:
        """Return a changed line; if locations are ignored, they are not marked."""
        if "loc" not in self.ignore:
            return marked([(text, kind)], marks)
        parts: Cells = []
        locations: list[tuple[int, int]] = []
        at = 0
        of_location = [(part, what == "location") for part, what in spans(text)]
        for is_location, group in itertools.groupby(of_location, key=itemgetter(1)):
            part = "".join(part for part, _ in group)
            parts.append((part, "location" if is_location else kind))
            if is_location:
                locations.append((at, at + len(part)))
            at += len(part)
        return marked(parts, outside(marks, locations))

    def _with_hits(self, text: str, parts: Cells) -> Cells:
        parts = marked(parts, self.found_in(text))
        if "loc" in self.ignore:
            parts = without_locations(parts)
        return [(part, self._style_of(kind)) for part, kind in parts]

    def _style_of(self, kind: str) -> str:
        return f"diff--{kind}" if f"diff--{kind}" in self.COMPONENT_CLASSES else ""

    def _number(self, numbers: Sequence[int], at: int | None) -> str:
        assert self._diff is not None
        found = self._diff.diff
        width = max(
            len(str(side.numbers[-1] + 1 if side.numbers else 1)) for side in (found.old, found.new)
        )
        return " " * width if at is None else f"{numbers[at] + 1:>{width}}"
