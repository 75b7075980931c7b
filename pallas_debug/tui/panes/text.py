"""Text of a stage or pass, with the values and origins of its lines.

Only lines on the screen are highlighted. Anything that needs the whole text (uses of a
value, lines that come from a Python line) is computed after the text is shown, in
the background if it takes long, and not at all for very large texts. Costs beside the lines and
notes below them come from the caller.
"""

from __future__ import annotations

import asyncio
import bisect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from textual import work
from textual.reactive import reactive

from pallas_debug.findings.facts import line_text
from pallas_debug.ir.operations import Kind, Module, guess_kind, read_line
from pallas_debug.model import SourceLine
from pallas_debug.tui.model.document import Document
from pallas_debug.tui.widgets.cells import (
    MAX_LINE,
    Cells,
    Mark,
    marked,
    spans,
    without_locations,
)
from pallas_debug.tui.widgets.find import FindView
from pallas_debug.tui.widgets.lineview import ViewMessage

MAX_LINKED = 4_000_000
"""Maximum size in bytes of a text that is parsed as a whole."""

AT_ONCE = 5_000
"""Maximum number of lines to parse before the text is drawn."""

_HEAD = 60
_FIRST = 500
"""Number of first lines in which the function is looked for."""

HEAT = "▁▂▃▄▅▆▇█"

DEFINED, SAME = "bold reverse text-accent", "bold underline text-accent"
"""Styles of a value of the line under the cursor: where it is defined, and where it is used."""

Note = Sequence[tuple[str, str]]
"""Note below a line: its lines with their styles."""


class Heat(NamedTuple):
    """Cost beside a line.

    Attributes:
      text: the cost, such as `41%`.
      level: share of the highest cost in the text, from 0 to 1; below 0 for a reduction.
    """

    text: str
    level: float


class TextPane(FindView):
    """Pane with the text of a step; marks hits, and the values of the line under the cursor."""

    locations: reactive[bool] = reactive(False)
    """Whether locations are shown."""

    class TextChanged(ViewMessage):
        """Message: the text changed, or more is known about it: `state`, `linked`, `count`."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.module = Module([])
        """Parsed text; has no lines until parsing is done."""
        self._kind = self.module.kind
        self._length = 0
        self._rows: Sequence[int] | None = None
        """Line of each row; None if each line takes one row."""
        self._values: dict[str, int | None] = {}
        self._origin: frozenset[int] = frozenset()
        self._make: Callable[[Sequence[str], Kind], Module] | None = Module
        self._heat: Mapping[int, Heat] = {}
        self._notes: Mapping[int, Note] = {}
        self._rows_below: dict[int, list[Cells]] = {}

    def on_mount(self) -> None:
        self._begin(self.cursor)

    # The source.

    @property
    def count(self) -> int:
        return len(self.lines)

    def show(
        self,
        lines: Sequence[str],
        *,
        keep: int | None = None,
        make: Callable[[Sequence[str], Kind], Module] | None = Module,
    ) -> None:
        """Show lines, with the cursor on line `keep`; by default on the module's function.

        Args:
          make: parses the lines of a text of a certain kind; None for a message.
        """
        self.lines = lines
        if isinstance(lines, Document):
            self._length = lines.size
        else:
            self._length = sum(map(len, lines)) + len(lines)
        self._make = make
        self._heat, self._notes = {}, {}
        self.set_reactive(TextPane.panned, 0)
        self._begin(keep)

    def line(self, number: int) -> str:
        """Return a line, cut to `MAX_LINE`."""
        return self.lines[number][:MAX_LINE]

    @property
    def state(self) -> str:
        """Short text about work in progress or unavailable features."""
        parts = []
        if self._length > MAX_LINKED:
            parts.append(
                f"no values and Python lines: the text has {self._length / 1e6:,.0f} MB, "
                f"the limit is {MAX_LINKED / 1e6:,.0f} MB"
            )
        elif self.count and self._make is not None and not self.linked:
            parts.append("parsing")
        if self.problem:
            parts.append(self.problem)
        return "; ".join(parts)

    @property
    def linked(self) -> bool:
        """True if values and Python lines are known."""
        return bool(self.module.lines)

    def _begin(self, keep: int | None) -> None:
        """Show the source from the start, and discard data about the previous text."""
        self.module = Module([])
        self._values, self._origin = {}, frozenset()
        if self.is_running:
            self.workers.cancel_group(self, "links")
        self._kind = guess_kind("\n".join(map(self.line, range(min(self.count, _HEAD)))))
        before = self.cursor
        self._fit_notes()
        self.changed(keep=self._function() if keep is None else keep)
        self._mark_values()
        if self.cursor != before:
            self.post_message(self.Moved(self))
        if keep is None:
            self.scroll_to(y=max(self.row_of(self.cursor) - 1, 0), animate=False, force=True)
        self._link()
        self.find()
        if isinstance(self.lines, Document) and self.is_running:
            self._index(self.lines)

    @work(thread=True, exclusive=True, group="index")
    def _index(self, lines: Document) -> None:
        lines.find_lines()
        self.app.call_from_thread(self._take_index, lines)

    def _take_index(self, lines: Document) -> None:
        if lines is self.lines:
            self.changed()
            self.post_message(self.TextChanged(self))

    def validate_cursor(self, line: int) -> int:
        if isinstance(self.lines, Document) and line >= self.count:
            self.lines.find_lines()
        return super().validate_cursor(line)

    def _function(self) -> int:
        """Return the line at which a module's first function begins; 0 for other texts."""
        numbered = enumerate(self.lines[:_FIRST] if self._kind == "mlir" else ())
        return next((n for n, line in numbered if "func.func @" in line), 0)

    # The parsed text.

    def _link(self) -> None:
        if not (self._make and self.count) or self._length > MAX_LINKED:
            return
        module = self._make(self.lines, self._kind)
        if self.count <= AT_ONCE and self._kind != "bundles":
            self._set_module(module)
        elif self.is_running:
            self._link_in_background(module)

    @work(exclusive=True, group="links")
    async def _link_in_background(self, module: Module) -> None:
        await asyncio.to_thread(module.make_tables)
        self._set_module(module)

    def _set_module(self, module: Module) -> None:
        if len(module.lines) != self.count:  # another text is already shown
            return
        self.module = module
        self._mark_values()
        self.post_message(self.TextChanged(self))

    # Rows: without definitions of locations, with notes below lines.

    @property
    def rows(self) -> int:
        return self.count if self._rows is None else len(self._rows)

    def row_of(self, line: int) -> int:
        if self._rows is None:
            return line
        return min(bisect.bisect_left(self._rows, line), max(len(self._rows) - 1, 0))

    def line_of(self, row: int) -> int:
        return row if self._rows is None else self._rows[row]

    def _arrange(self) -> None:
        """Arrange the lines in rows."""
        is_small = self._length <= MAX_LINKED
        is_hidden = self._kind == "mlir" and is_small and not self.locations
        self._rows = None
        if is_hidden or self._rows_below:
            self._rows = [
                number
                for number, line in enumerate(self.lines)
                if not (is_hidden and line.startswith("#loc"))
                for _ in range(1 + len(self._rows_below.get(number, ())))
            ]
        self.changed()

    # Drawing.

    def prefix(self, line: int) -> Cells:
        number = f"{line + 1:>{len(str(self.count))}}"
        mark, style = " ", "text-muted"
        if line in self._origin:
            mark, style = "▌", "bold text-accent"
        return [(number, "text-muted"), (mark, style), *self._heat_of(line)]

    def _heat_of(self, line: int) -> Cells:
        if not self._heat:
            return []
        width = max(len(heat.text) for heat in self._heat.values())
        heat = self._heat.get(line)
        if heat is None:
            return [(" " * (width + 3), "")]
        level = min(abs(heat.level), 1.0)
        warm = "text-warning" if level < 0.6 else "bold text-error"
        style = "text-success" if heat.level < 0.25 else warm
        bar = HEAT[min(int(level * len(HEAT)), len(HEAT) - 1)]
        return [(f"{heat.text:>{width + 1}}{bar} ", style)]

    def below(self, line: int) -> Sequence[Cells]:
        return self._rows_below.get(line, ())

    def cells(self, line: int) -> Cells:
        text = self.line(line)
        # Most characters take a cell: highlight slightly more than fits on the screen.
        seen = self.columns + self.panned + 256
        parts: Cells = list(spans(text[:seen]))
        parts = marked(parts, self._value_marks(line, text))
        parts = marked(parts, self.found_in(text[:seen]))
        if not self.locations:
            parts = without_locations(parts)
        if text[seen:]:
            parts.append((text[seen:], ""))
        if len(text) == MAX_LINE:
            parts.append((" …", "comment"))
        return parts

    def _value_marks(self, line: int, text: str) -> list[Mark]:
        """Mark the values of the cursor's line, and in a jaxpr all values."""
        if self._kind != "jaxpr" and not any(name in text for name in self._values):
            return []
        marks: list[Mark] = []
        for operation in read_line(text, self._kind):
            for values, same in ((operation.results, DEFINED), (operation.operands, SAME)):
                for value in values:
                    if self._is_same(value.name, line):
                        marks.append((value.start, value.stop, same))
                    elif self._kind == "jaxpr":
                        marks.append((value.start, value.stop, "value"))
        return sorted(marks)

    def _is_same(self, name: str, line: int) -> bool:
        """Return whether a name refers to a value of the cursor's line."""
        base = name.partition("#")[0]
        if base not in self._values:
            return False
        return not self.linked or self.module.definition(base, line) == self._values[base]

    def watch_locations(self) -> None:
        self._arrange()

    def on_resize(self) -> None:
        self._fit_notes()

    # Costs and notes.

    def show_heat(self, heat: Mapping[int, Heat]) -> None:
        """Show costs beside lines."""
        self._heat = heat
        self.refresh()

    def show_notes(self, notes: Mapping[int, Note]) -> None:
        """Show notes below lines."""
        self._notes = notes
        self._fit_notes()

    def _fit_notes(self) -> None:
        """Wrap the notes to the width of the pane."""
        margin = " " * (len(str(self.count)) + 1)
        width = max(self.columns - 1, len(margin) + 20)
        self._rows_below = {
            line: [
                [(margin, ""), (row, style)]
                for text, style in note
                for row in _wrapped(text, width - len(margin))
            ]
            for line, note in self._notes.items()
            if line < self.count
        }
        self._arrange()

    def next_note(self) -> bool:
        """Move the cursor to the next line with a note, from the last to the first."""
        lines = sorted(self._notes)
        if lines:
            self.cursor = next((line for line in lines if line > self.cursor), lines[0])
        return bool(lines)

    def next_hot(self) -> bool:
        """Move the cursor to the line that costs most after the cursor's, or else to the first."""
        lines = sorted(self._heat, key=lambda line: -self._heat[line].level)
        at = lines.index(self.cursor) + 1 if self.cursor in lines else 0
        if lines:
            self.cursor = lines[at % len(lines)]
        return bool(lines)

    # Values, and origins of lines.

    def watch_cursor(self, before: int, after: int) -> None:
        if self._rows is not None and self.line_of(self.row_of(after)) != after:
            self.locations = True  # it is hidden
        self._mark_values()
        super().watch_cursor(before, after)

    def _mark_values(self) -> None:
        """Find the values of the cursor's line, to be highlighted everywhere."""
        self._values = {}
        if not self.count:
            return
        for operation in read_line(self.line(self.cursor), self._kind):
            for value in (*operation.results, *operation.operands):
                base = value.name.partition("#")[0]
                known = self.module.definition(base, self.cursor) if self.linked else None
                self._values[base] = known

    def next_use(self) -> bool:
        """Move the cursor to the next use of the line's result; return whether there is one."""
        for operation in self.module.operations(self.cursor) if self.linked else ():
            for value in operation.results:
                uses = self.module.uses(value.name, self.cursor)
                later = [line for line in uses if line > self.cursor]
                if uses:
                    self.cursor = later[0] if later else uses[0]
                    return True
        return False

    def to_definition(self) -> bool:
        """Move the cursor to the definition of the line's first operand, if there is one."""
        for operation in self.module.operations(self.cursor) if self.linked else ():
            for value in operation.operands:
                line = self.module.definition(value.name, self.cursor)
                if line is not None and line != self.cursor:
                    self.cursor = line
                    return True
        return False

    @property
    def origins(self) -> Mapping[tuple[str, int], Sequence[int]]:
        """Lines of the text, from 0, that come from each Python line."""
        return self.module.from_source if self.linked else {}

    def mark_origin(self, lines: Sequence[int]) -> None:
        """Mark the lines that come from a Python line."""
        self._origin = frozenset(lines)
        self.refresh()

    @property
    def origin(self) -> tuple[SourceLine, ...]:
        """Python line from which the cursor's line comes, and its callers."""
        if not self.linked or len(self.lines[self.cursor]) > MAX_LINE:
            return ()
        return self.module.source(self.cursor)

    @property
    def origin_text(self) -> str:
        """Origin as text: `kernel.py:120 ← api.py:33`, or the lines of a bundle's instructions."""
        places = map(line_text, self.origin)
        return (", " if self.has_many_origins else " ← ").join(dict.fromkeys(places))

    @property
    def has_many_origins(self) -> bool:
        """True if lines come from several unrelated Python lines, as bundles do."""
        return self._kind == "bundles"


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a line of a note behind a rule; its continuation is indented further."""
    inside = text.lstrip()
    indent = "│ " + " " * (len(text) - len(inside))
    rows = textwrap.wrap(inside, max(width - len(indent) - 2, 10), break_on_hyphens=False)
    return [indent + ("  " if number else "") + row for number, row in enumerate(rows or [""])]
