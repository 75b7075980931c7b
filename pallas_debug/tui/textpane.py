"""The text of a stage or pass: lines of any number and length, and what is known of them.

Only what is on the screen is read and coloured. What needs the whole text (who uses a value,
which lines a Python line became, what folds) is made once it is shown, aside where that takes
longer than a moment, and left out for texts that are too large.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import ClassVar

from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from pallas_debug.ir.operations import Module, guess_kind, read_line
from pallas_debug.ir.text import Document
from pallas_debug.model import SourceLine
from pallas_debug.tui import highlight
from pallas_debug.tui.find import FindView
from pallas_debug.tui.folds import Folds
from pallas_debug.tui.lines import LONGEST, DocumentLines, Lines, ListLines
from pallas_debug.tui.lineview import Cells
from pallas_debug.tui.only import Only

LINKED = 4_000_000
"""Bytes up to which a text is looked at as a whole."""

AT_ONCE = 5_000
"""Lines up to which that is done before the text is drawn."""

WATCHED = 1.0
"""Seconds between two looks at what became of a file."""

_HEAD = 60
_TOLD = 0.3
"""Seconds between two times that progress is told: the screen is drawn anew for it."""

_FATES = {
    "replaced": "The file was replaced or cut short while it was shown; this is the new text.",
    "gone": "The file is gone; this is the text as it was.",
}


class TextPane(FindView):
    """The text of a step, with what is searched for and the values under the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "text--number",
        "text--hit",
        "text--defined",
        "text--same",
        "text--origin",
        "text--folded",
        "text--region",
        "text--notice",
        *(f"text--{kind}" for kind in highlight.KINDS),
    }
    DEFAULT_CSS = """
    TextPane {
        & .text--number { text-style: dim; }
        & .text--hit { background: $warning; color: $background; text-style: bold; }
        & .text--same { color: $text-accent; text-style: bold underline; }
        & .text--defined { color: $text-accent; text-style: bold reverse; }
        & .text--origin { color: $text-accent; text-style: bold; }
        & .text--folded { color: $text-warning; text-style: italic; }
        & .text--region { color: $text-accent; text-style: bold; }
        & .text--notice { background: $warning; color: $background; }
        & .text--comment { text-style: dim italic; }
        & .text--location { text-style: dim; }
        & .text--string { color: $text-success; }
        & .text--value { color: $text-accent; }
        & .text--operation { color: $text-primary; text-style: bold; }
        & .text--type { color: $text-secondary; }
        & .text--literal { color: $text-warning; }
        & .text--label { color: $text-secondary; text-style: bold; }
        &:nocolor .text--hit { text-style: bold reverse underline; }
        &:nocolor .text--notice { text-style: reverse; }
    }
    """

    folded: reactive[bool] = reactive(True)
    """Whether locations are folded away, but for those of the line under the cursor."""

    class Changed(Message):
        """More is known of the text, or it became another: `state`, `links`, `count`."""

        def __init__(self, view: TextPane) -> None:
            self.view = view
            super().__init__()

        @property
        def control(self) -> TextPane:
            return self.view

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.notice = ""
        """What became of the file while it was shown."""
        self.module = Module([])
        """The text as a whole; one without lines as long as nothing is known of it."""
        self._kind = self.module.kind
        self.is_diff = False
        self._folds = Folds()
        self._only: Only | None = None
        self._values: dict[str, int | None] = {}
        self._origin: frozenset[int] = frozenset()
        self._ends: tuple[int, ...] = ()
        self._wanted: int | None = None

    def on_mount(self) -> None:
        self.set_interval(WATCHED, self.look)
        self._begin(self.cursor)

    # What is shown.

    @property
    def count(self) -> int:
        return self.source.count

    def show(
        self, lines: Sequence[str] | Document | Lines, *, is_diff: bool = False, keep: int = 0
    ) -> None:
        """Show lines, with the cursor on line `keep`.

        A document stays the caller's to close, once it is shown no more.

        Args:
          is_diff: the lines are no stage of a kernel: no values and regions are looked for.
        """
        if isinstance(lines, Document):
            lines = DocumentLines(lines)
        self.source = ListLines(lines) if isinstance(lines, Sequence) else lines
        self.notice = ""
        self.is_diff = is_diff
        self.set_reactive(TextPane.panned, 0)
        self._begin(keep)

    def line(self, number: int) -> str:
        """A line, as far as `LONGEST`."""
        return self.source.text(number)

    @property
    def state(self) -> str:
        """What is going on, and what is not known: a few words, or none."""
        source = self.source
        said = []
        if source.indexed < source.size:
            said.append(f"reading, {source.indexed * 100 // source.size} %")
        if self.searching:
            said.append("searching")
        if source.size > LINKED:
            said.append(
                f"values, regions and Python lines are off: {source.size / 1e6:,.0f} MB, "
                f"and more than {LINKED / 1e6:,.0f} MB is not read whole"
            )
        elif self.count and not (self.linked or self.is_diff):
            said.append("linking values and lines")
        if self.problem:
            said.append(self.problem)
        return "; ".join(said)

    @property
    def linked(self) -> bool:
        """Whether values, regions and Python lines are known."""
        return bool(self.module.lines)

    def _begin(self, keep: int = 0) -> None:
        """Show the source from the start: everything known of another text is forgotten."""
        self.module = Module([])
        self._folds, self._only = Folds(), None
        self._values, self._origin = {}, frozenset()
        self._wanted = keep
        if self.is_running:
            self.workers.cancel_group(self, "index")
            self.workers.cancel_group(self, "links")
        complete = self.source.index()
        head = [self.source.text(n) for n in range(min(self.count, _HEAD))]
        self._kind = guess_kind("\n".join(head))
        self._reach()
        self._link(complete)
        self._search_again()
        if not complete and self.is_running:
            self.aside(self._index, "index")

    async def _index(self) -> None:
        told = time.monotonic()
        while not self.source.index():
            if time.monotonic() - told > _TOLD:
                told = time.monotonic()
                self._reach()
                self.post_message(self.Changed(self))
            await self.breathe()
        self._link(True)
        self._reach()
        self.post_message(self.Changed(self))

    def _reach(self) -> None:
        """Go to the line that was asked for, as far as the lines are known."""
        wanted = self._wanted
        complete = self.source.indexed >= self.source.size
        if wanted is not None and (complete or self.count > wanted >= 0):
            self._wanted = None
        if wanted is not None and wanted < 0:
            wanted = self.count - 1
        before = self.cursor
        if wanted is not None:
            self._widen_to(wanted)
        self.changed(keep=wanted)
        self._mark_values()
        if self.cursor != before:
            self.post_message(self.Moved(self, self.cursor))

    def go_to(self, line: int) -> None:
        """Put the cursor on a line, from 0; -1 is the last. Waits for one that is not known yet."""
        self._wanted = line
        self._reach()

    def land_on(self, line: int) -> None:
        if line < self.count:
            self.cursor = line
        else:  # the search was quicker than the index
            self.go_to(line)

    def action_go(self, line: int) -> None:
        if line < 0 and self.source.indexed < self.source.size:
            self.go_to(line)
        else:
            super().action_go(line)

    # What becomes of a file.

    @property
    def room(self) -> int:
        return max(self.size.height - bool(self.notice), 1)

    def look(self) -> None:
        """See what became of the file, and show it."""
        before = self.notice
        at_end = 0 < self.count == self.cursor + 1
        try:
            fate = self.source.grow()
        except OSError as error:
            self.notice = f"The file cannot be read any more: {error.strerror or error}."
            fate = "same"
        self.notice = _FATES.get(fate, self.notice)
        if fate == "replaced":
            self._begin(self.cursor)
        elif fate == "grown":
            self.notice = ""
            self.module = Module([])  # what is folded stays so
            self._wanted = -1 if at_end else None
            self.aside(self._index, "index")
            self._search_on()
        if fate == "grown" or self.notice != before:
            self.changed()
            self.post_message(self.Changed(self))

    def dismiss(self) -> bool:
        """Take the notice away; whether there was one."""
        had, self.notice = bool(self.notice), ""
        self.changed()
        return had

    def _below(self) -> Strip:
        return self.strip([(self.notice, "text--notice")], self.base)

    # What is known of the text as a whole.

    def _link(self, complete: bool) -> None:
        if self.is_diff or not complete or self.source.size > LINKED or not self.count:
            return
        module = Module(self.source.whole(), self._kind)
        if self.count <= AT_ONCE:
            self._linked(module)
        elif self.is_running:
            self.aside(partial(self._link_aside, module), "links")

    async def _link_aside(self, module: Module) -> None:
        await asyncio.to_thread(module.make_tables)
        self._linked(module)

    def _linked(self, module: Module) -> None:
        if len(module.lines) != self.count:  # another text is shown since
            return
        self.module = module
        self._folds = Folds(module.regions, folded=self._folds.folded)
        self._mark_values()
        self.changed()
        self.post_message(self.Changed(self))

    # Folding.

    @property
    def rows(self) -> int:
        return (self._only or self._folds).rows(self.count)

    def row_of(self, line: int) -> int:
        return (self._only or self._folds).row_of(line)

    def line_of(self, row: int) -> int:
        return (self._only or self._folds).line_of(row)

    def toggle_fold(self) -> None:
        """Fold the region around the cursor, or unfold the one that begins there."""
        start = self._folds.toggle(self.cursor)
        if start is not None:
            self.cursor = start
            self.changed()

    def fold_all(self) -> None:
        """Fold every region."""
        self._folds.fold_all()
        self.changed()
        self.cursor = self.line_of(self.row_of(self.cursor))

    def unfold_all(self) -> None:
        """Unfold every region."""
        self._folds.unfold_all()
        self.changed()

    # Only what was found.

    @property
    def narrowed(self) -> bool:
        """Whether only lines with hits are shown, with some around each."""
        return self._only is not None

    def narrow(self, wanted: bool) -> None:
        """Show only the lines that have what is searched for, with some around each; or all."""
        self._only = Only() if wanted and self.sought is not None else None
        self.hits_changed()
        self.changed()

    def _widen_to(self, line: int) -> None:
        """Show all lines if this one is left out; not while it may yet be found."""
        if self._only is not None and line not in self._only and not self.searching:
            self.narrow(False)

    def hits_changed(self) -> None:
        if self._only is None:
            return
        if not (self.hits or self.searching):
            self.problem = self.problem or "no line has it: all are shown"
            self.narrow(False)
            return
        self._only.extend(self.hits)
        self.changed()

    # A line.

    def left_out(self, line: int) -> int:
        """Of a line that is huge, what stands left of the screen is not read."""
        if self.wrap or self.panned < LONGEST or self.source.length(line) <= LONGEST:
            return 0
        return self.panned - self.panned % (LONGEST // 2)

    def prefix(self, line: int) -> Cells:
        number = f"{line + 1:>{len(str(self.count))}}"
        mark, style = " ", "text--number"
        if line in self._origin:
            mark, style = "▌", "text--origin"
        elif self._folds.hidden(line):
            mark, style = "▸", "text--folded"
        elif self._only is not None and self._only.opens(line):
            mark, style = "┄", "text--folded"
        elif line in self._ends:
            mark, style = "╭╰"[line == self._ends[1]], "text--region"
        return [(number, "text--number"), (mark, style)]

    def cells(self, line: int) -> Cells:
        start, width = self.left_out(line), self.columns
        # Wrapped, a line is no longer than the screen: what it is cut to is said at its end.
        shown = min(LONGEST, max(self.room - 2, 1) * max(width - 10, 1)) if self.wrap else LONGEST
        text, length = self.source.window(line, start, start + shown)
        rest = length - start - shown
        # A character takes a cell, or there are few that do not: what is not seen has no colours.
        seen = shown if self.wrap else width + self.panned - start + 256
        parts = highlight.spans(text[:seen])
        marks = [] if start else self._value_marks(line, text)
        parts = highlight.marked(parts, marks)
        parts = highlight.marked(parts, self.found_in(text[:seen]))
        if self.folded and line != self.cursor:
            parts = highlight.without_locations(parts)
        cells: Cells = [(part, f"text--{kind}" if kind else "") for part, kind in parts]
        if text[seen:]:
            cells.append((text[seen:], ""))
        if rest > 0:
            cells.append((f" … {rest:,} more {self.source.unit}", "text--comment"))
        if hidden := self._folds.hidden(line):
            cells.append((f" … {hidden:,} lines", "text--folded"))
        return cells

    def _value_marks(self, line: int, text: str) -> list[highlight.Mark]:
        """The values of a line: those of a jaxpr are plain words, and some are of the cursor's."""
        if self._kind != "jaxpr" and not any(name in text for name in self._values):
            return []
        marks: list[highlight.Mark] = []
        for operation in read_line(text, self._kind):
            for values, same in ((operation.results, "defined"), (operation.operands, "same")):
                for value in values:
                    if self._is_same(value.name, line):
                        marks.append((value.start, value.stop, same))
                    elif self._kind == "jaxpr":
                        marks.append((value.start, value.stop, "value"))
        return sorted(marks)

    def _is_same(self, name: str, line: int) -> bool:
        """Whether a name means a value of the line under the cursor."""
        base = name.partition("#")[0]
        if base not in self._values:
            return False
        return not self.linked or self.module.definition(base, line) == self._values[base]

    def watch_folded(self) -> None:
        self.refresh()

    def watch_wrap(self) -> None:
        self.set_reactive(TextPane.panned, 0)
        super().watch_wrap()

    # Values, and where lines come from.

    def watch_cursor(self) -> None:
        self._widen_to(self.cursor)
        if self._folds.reveal(self.cursor):
            self.changed()
        self._wanted = None
        self._mark_values()
        super().watch_cursor()

    def _mark_values(self) -> None:
        """The values of the line under the cursor are set apart wherever they stand."""
        self._values = {}
        self._ends = ()
        if not self.count:
            return
        region = self._folds.around(self.cursor)
        self._ends = (region.start, region.stop) if region else ()
        for operation in read_line(self.line(self.cursor), self._kind):
            for value in (*operation.results, *operation.operands):
                base = value.name.partition("#")[0]
                known = self.module.definition(base, self.cursor) if self.linked else None
                self._values[base] = known

    def next_use(self) -> bool:
        """Put the cursor on the next line that uses what the line at hand defines."""
        for operation in self.module.operations(self.cursor) if self.linked else ():
            for value in operation.results:
                uses = self.module.uses(value.name, self.cursor)
                later = [line for line in uses if line > self.cursor]
                if uses:
                    self.cursor = later[0] if later else uses[0]
                    return True
        return False

    def to_definition(self) -> bool:
        """Put the cursor on the line that defines the first operand of the line at hand."""
        for operation in self.module.operations(self.cursor) if self.linked else ():
            for value in operation.operands:
                line = self.module.definition(value.name, self.cursor)
                if line is not None and line != self.cursor:
                    self.cursor = line
                    return True
        return False

    def mark_origin(self, lines: Sequence[int]) -> None:
        """Mark the lines that come from the Python line at hand."""
        self._origin = frozenset(lines)
        self.refresh()

    @property
    def origin(self) -> tuple[SourceLine, ...]:
        """The Python line that the line at hand comes from, and those that called it."""
        if not self.linked or self.source.length(self.cursor) > LONGEST:
            return ()
        return self.module.source(self.cursor)

    @property
    def origin_text(self) -> str:
        """`kernel.py:120 ← api.py:33`."""
        return " ← ".join(f"{PurePath(s.file).name}:{s.line}" for s in self.origin)
