"""The three panes: kernels, steps of one, and the text of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import ClassVar

from textual.reactive import reactive

from pallas_debug.ir.operations import Module
from pallas_debug.model import SourceLine
from pallas_debug.tui import highlight
from pallas_debug.tui.lineview import Cells, LineView
from pallas_debug.tui.model import Browser, Entry, Step

LONGEST = 10_000
"""Characters of a line that are shown."""

MARKS = {"+": "added", "-": "removed", "@": "hunk"}
"""How a diff marks a line, and the style of such a line."""

OK, FAILED, BROKEN = "✓", "✗", "?"


class KernelPane(LineView):
    """Kernels, each with its targets and what became of them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"kernels--ok", "kernels--failed"}
    DEFAULT_CSS = """
    KernelPane {
        & .kernels--ok { color: $text-success; }
        & .kernels--failed { color: $text-error; text-style: bold; }
    }
    """

    def __init__(self, browser: Browser, *, id: str) -> None:
        super().__init__(id=id)
        self._browser = browser

    @property
    def count(self) -> int:
        return len(self._browser.entries)

    @property
    def current(self) -> Entry | None:
        """The kernel under the cursor."""
        return self._browser.entries[self.cursor] if self.count else None

    def cells(self, line: int) -> Cells:
        entry = self._browser.entries[line]
        stored = self._browser.stored(entry)
        cells: Cells = [(f"{BROKEN} ", "kernels--failed")] if stored.problem else []
        if len(self._browser.roots) > 1:
            cells.insert(0, (f"{'AB'[entry.dump]} ", ""))
        for compilation in stored.compilations:
            is_ok = compilation.compilation is not None and compilation.compilation.ok
            mark, style = (OK, "kernels--ok") if is_ok else (FAILED, "kernels--failed")
            cells.append((f"{mark}{compilation.target} ", style))
        return [*cells, (stored.name, "")]


class StepPane(LineView):
    """The stages and passes of a kernel; those that changed nothing are dimmed, or hidden."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"steps--same", "steps--failed", "steps--size"}
    DEFAULT_CSS = """
    StepPane {
        & .steps--same { text-style: dim; }
        & .steps--size { text-style: dim; }
        & .steps--failed { color: $text-error; text-style: bold; }
    }
    """

    only_changed: reactive[bool] = reactive(False)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.all_steps: list[Step] = []
        self.steps: list[Step] = []

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def current(self) -> Step | None:
        return self.steps[self.cursor] if self.steps else None

    def show(self, steps: list[Step], at: Step | None) -> None:
        """Show these steps, with the cursor on the one that is most like `at`."""
        self.all_steps = steps
        self._filter(at)

    def watch_only_changed(self) -> None:
        self._filter(self.current)

    def _filter(self, at: Step | None) -> None:
        self.steps = [s for s in self.all_steps if s.changed or s.failed or not self.only_changed]
        labels = [s.label for s in self.steps]
        keep = labels.index(at.label) if at is not None and at.label in labels else 0
        self.changed(keep=keep)

    def cells(self, line: int) -> Cells:
        step = self.steps[line]
        if step.pass_ is None:
            return [(step.label, "")]
        size = f"  {step.pass_.size:,} B"
        if step.failed:
            return [(f"{FAILED} {step.label}", "steps--failed"), (size, "steps--size")]
        if not step.changed:
            return [(f"  {step.label} =", "steps--same")]
        return [(f"  {step.label}", ""), (size, "steps--size")]

    def next_changed(self, direction: int) -> None:
        """Put the cursor on the next step, or the previous one, that changed something."""
        steps = range(self.cursor + direction, self.count if direction > 0 else -1, direction)
        found = next((i for i in steps if self.steps[i].changed), None)
        if found is not None:
            self.cursor = found


class SourcePane(LineView):
    """The kernel's Python file as the dump keeps it; lines that operations come from are marked."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"source--number", "source--origin"}
    DEFAULT_CSS = """
    SourcePane {
        & .source--number { text-style: dim; }
        & .source--origin { color: $text-accent; text-style: bold; }
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[str] = []
        self._counts: dict[int, int] = {}

    @property
    def count(self) -> int:
        return len(self._lines)

    def show(self, lines: Sequence[str], counts: dict[int, int]) -> None:
        """Show a file; `counts` says how many lines of the text come from each of its lines."""
        self._lines, self._counts = list(lines), counts
        self.changed()

    def cells(self, line: int) -> Cells:
        operations = self._counts.get(line + 1, 0)
        origin = f"{operations:>4} ▌" if operations else "     ▏"
        return [
            (f"{line + 1:>{len(str(self.count))}} ", "source--number"),
            (origin, "source--origin" if operations else "source--number"),
            (self._lines[line], ""),
        ]


class TextPane(LineView):
    """The text of a step or a diff, with what is searched for and the values under the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "text--number",
        "text--hit",
        "text--same",
        "text--origin",
        *(f"text--{kind}" for kind in (*highlight.KINDS, *MARKS.values())),
    }
    DEFAULT_CSS = """
    TextPane {
        & .text--number { text-style: dim; }
        & .text--hit { background: $warning; color: $background; text-style: bold; }
        & .text--same { color: $text-accent; text-style: bold underline; }
        & .text--origin { color: $text-accent; text-style: bold; }
        & .text--comment { text-style: dim italic; }
        & .text--location { text-style: dim; }
        & .text--string { color: $text-success; }
        & .text--value { color: $text-accent; }
        & .text--operation { color: $text-primary; text-style: bold; }
        & .text--type { color: $text-secondary; }
        & .text--literal { color: $text-warning; }
        & .text--added { color: $text-success; }
        & .text--removed { color: $text-error; }
        & .text--hunk { color: $text-secondary; text-style: bold; }
    }
    """

    folded: reactive[bool] = reactive(True)

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self._values: frozenset[str] = frozenset()
        self._origin: frozenset[int] = frozenset()
        self.is_diff = False
        self.module = Module([])
        self.hits: list[int] = []

    @property
    def count(self) -> int:
        return len(self._lines)

    def show(self, lines: Sequence[str], *, is_diff: bool = False, keep: int = 0) -> None:
        """Show lines, with the cursor on line `keep`; those of a diff are marked in front."""
        self._lines = list(lines)
        self.is_diff = is_diff
        self.module = Module([] if is_diff else self._lines)
        self._origin = frozenset()
        self._search()
        self.changed(keep=keep)
        self._mark_values()

    def line(self, number: int) -> str:
        return self._lines[number]

    def cells(self, line: int) -> Cells:
        text = self._lines[line]
        cut = len(text) - LONGEST
        spans = self._spans(text[:LONGEST])
        if self.folded and line != self.cursor:
            spans = highlight.without_locations(spans)
        if self._pattern is not None:
            spans = highlight.with_hits(spans, self._pattern)
        width = len(str(self.count))
        mark = ("▌", "text--origin") if line in self._origin else (" ", "text--number")
        numbered: Cells = [(f"{line + 1:>{width}}", "text--number"), mark]
        cells = numbered + [(part, f"text--{kind}" if kind else "") for part, kind in spans]
        return cells if cut <= 0 else [*cells, (f" … {cut:,} more characters", "text--comment")]

    def _spans(self, text: str) -> highlight.Spans:
        if self.is_diff:
            mark = MARKS.get(text[:1], "")
            return [(text, mark)] if mark else highlight.spans(text)
        return [
            (part, "same" if kind == "value" and part in self._values else kind)
            for part, kind in highlight.spans(text)
        ]

    def watch_folded(self) -> None:
        self.refresh()

    def mark_origin(self, lines: Sequence[int]) -> None:
        """Mark the lines that come from the Python line at hand."""
        self._origin = frozenset(lines)
        self.refresh()

    def watch_cursor(self) -> None:
        self._mark_values()
        super().watch_cursor()

    def _mark_values(self) -> None:
        """The values of the line under the cursor are set apart wherever they stand."""
        names: set[str] = set()
        if self._lines and self.module.lines and len(self._lines[self.cursor]) <= LONGEST:
            for operation in self.module.operations(self.cursor):
                names.update(v.name for v in (*operation.results, *operation.operands))
        self._values = frozenset(names)

    def next_use(self) -> None:
        """Put the cursor on the next line that uses what the line at hand defines."""
        for operation in self.module.operations(self.cursor) if self.module.lines else ():
            for value in operation.results:
                uses = self.module.uses(value.name, self.cursor)
                later = [line for line in uses if line > self.cursor]
                if uses:
                    self.cursor = later[0] if later else uses[0]
                    return

    def to_definition(self) -> None:
        """Put the cursor on the line that defines the first operand of the line at hand."""
        for operation in self.module.operations(self.cursor) if self.module.lines else ():
            for value in operation.operands:
                line = self.module.definition(value.name, self.cursor)
                if line is not None and line != self.cursor:
                    self.cursor = line
                    return

    @property
    def origin(self) -> tuple[SourceLine, ...]:
        """The Python line that the line at hand comes from, and those that called it."""
        if not self._lines or not self.module.lines:
            return ()
        if len(self._lines[self.cursor]) > LONGEST:
            return ()
        return self.module.source(self.cursor)

    @property
    def origin_text(self) -> str:
        """`kernel.py:120 ← api.py:33`."""
        return " ← ".join(f"{PurePath(s.file).name}:{s.line}" for s in self.origin)

    def search(self, pattern: re.Pattern[str] | None) -> None:
        """Look for a pattern in every line."""
        self._pattern = pattern
        self._search()
        self.refresh()

    def _search(self) -> None:
        found = self._pattern
        lines = self._lines if found is not None else ()
        self.hits = [i for i, line in enumerate(lines) if found is not None and found.search(line)]

    def next_hit(self, direction: int, *, here: bool = False) -> None:
        """Put the cursor on the next line with a hit, or the previous one; from the end anew."""
        if not self.hits:
            return
        if direction > 0:
            later = (i for i in self.hits if i > self.cursor or (here and i == self.cursor))
            self.cursor = next(later, self.hits[0])
        else:
            earlier = (i for i in reversed(self.hits) if i < self.cursor)
            self.cursor = next(earlier, self.hits[-1])

    @property
    def where(self) -> str:
        """`3/41`: which of the hits the cursor stands on, and how many lines have one."""
        if self._pattern is None:
            return ""
        before = sum(1 for i in self.hits if i <= self.cursor)
        return f"{before}/{len(self.hits)}"
