"""Actions that move between panes, kernels, passes and targets, or go to a place by name.

When switching between texts of a kernel, the cursor stays on its Python line.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from textual import on

from pallas_debug.render import plural
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import KernelStep, TextPlace
from pallas_debug.tui.model.runs import RunEvent
from pallas_debug.tui.model.spot import matching
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.workspace import Line, Workspace

_SOURCE = re.compile(r"(?P<file>.*[^:\s]):(?P<line>\d+)")
_PASS = re.compile(r"p(?P<number>\d+)")


class MovingActions(Workspace):
    """Mixin with actions that go to another place."""

    _origin: tuple[Line, float] | None = None
    """Python line under the cursor, and relative position among the lines that come from it."""
    _seeks_origin = False
    """Whether the cursor still has to move to the lines of a new text that come from `_origin`."""

    @action("pane.previous", "shift+tab", "previous pane", priority=True, arguments="-1")
    @action("pane.next", "tab", "next pane", priority=True, arguments="1")
    def action_focus_pane(self, direction: int) -> None:
        self.focus_pane(direction)

    @action("pane.into", "enter", "into the next pane; fold a region of a text; filter a diff")
    def action_into_pane(self) -> None:
        if self.focused is self.trail:
            self.trail.choose()
        elif self.focused is self.text:
            self.text.toggle_fold()
        elif self.focused is self.diff:
            self.diff.choose()
        else:
            self.focus_pane(1)

    @action("pane.zoom", "z", "zoom a pane")
    def action_zoom_pane(self) -> None:
        self.zoomed = not self.zoomed

    # By number or name.

    @action("go.to", "colon", "go to a line, a pass (p13 or its name), or file:line", priority=True)
    def action_go_to(self) -> None:
        self.ask("line, p13, name of a pass, or file:line", done=self._go_to)

    def _go_to(self, typed: str) -> None:
        typed = typed.strip()
        if typed.isdecimal():
            self.text.go_to(max(int(typed), 1) - 1)
            source = self.text.source
            if int(typed) > self.text.count and source.indexed >= source.size:
                self.show_message(f"there are {plural(self.text.count, 'line')}")
        elif place := _SOURCE.fullmatch(typed):
            self._go_to_source(place["file"], int(place["line"]))
        elif typed:
            self._go_to_named_step(typed)

    def _go_to_named_step(self, typed: str) -> None:
        number = _PASS.fullmatch(typed)
        found = matching(self.steps.all_steps, number["number"] if number else typed)
        if len(found) == 1:
            self.go_to_step(found[0])
        elif found:
            self._choose_step(found)
        else:
            self.show_message(f"no line, stage or pass {typed!r}")

    def _choose_step(self, steps: list[KernelStep]) -> None:
        def chosen(wanted: KernelStep | None) -> None:
            if wanted is not None:
                self.go_to_step(wanted)

        at = steps.index(self.steps.current) if self.steps.current in steps else 0
        self.choose("go to stage or pass", [(s.label, s) for s in steps], chosen, at=at)

    def _go_to_source(self, file: str, line: int) -> None:
        """Show a line of the Python source, and mark the operations that come from it."""
        origins = self.text.origins
        files = sorted({name for name, _ in origins if _is_path(name, file)})
        own = self.browser.source_file(self.entry) if self.entry else None
        if own is not None and _is_path(own, file):
            self.sourcing = True
            self.source.cursor = line - 1
        elif not files:
            self.show_message(f"nothing in this text comes from a file {file!r}")
            return
        made = sorted({at for name in files for at in origins.get((name, line), ())})
        if not made:
            lines = sorted({number for name, number in origins if name in files})
            near = min(lines, key=lambda number: abs(number - line), default=None)
            hint = f"; try line {near}" if near else ""
            self.show_message(f"nothing in this text comes from {file}:{line}{hint}")
            return
        self.text.mark_origin(made)
        self.text.go_to(made[0])
        self.show_message(f"{plural(len(made), 'line')} from {file}:{line}")

    # Kernels.

    @action("list.filter", "f", "filter the list of kernels or passes", priority=True)
    def action_filter_list(self) -> None:
        pane = self.steps if self.focused is self.steps else self.kernels
        self.back_to = pane
        self.ask(pane.filter_hint, value=pane.filter_text, typed=pane.filter)

    @action("kernels.other_dump", "B", "the kernel in the other directory")
    def action_other_dump(self) -> None:
        self.kernels.side = 1 - self.kernels.side

    # Passes and targets.

    @action(
        "pass.previous_changed",
        "left_square_bracket",
        "previous pass that changed something",
        arguments="-1",
    )
    @action(
        "pass.next_changed",
        "right_square_bracket",
        "next pass that changed something",
        arguments="1",
    )
    def action_move_changed(self, direction: int) -> None:
        self.steps.next_changed(direction)

    @action("pass.previous", "left_curly_bracket", "previous pass", arguments="-1")
    @action("pass.next", "right_curly_bracket", "next pass", arguments="1")
    def action_move_pass(self, direction: int) -> None:
        self.steps.cursor += direction

    @action("target.previous", "T", "previous target", arguments="-1")
    @action("target.next", "t", "next target", arguments="1")
    def action_move_target(self, direction: int) -> None:
        """Show the next or previous target at the same step."""
        if self.entry is None or self.target is None:
            return
        names = [c.target for c in self.browser.stored(self.entry).compilations]
        self.wanted_target = names[(names.index(self.target) + direction) % len(names)]
        self.show_kernel()

    # Findings and prints.

    @action("runs.show", "R", "findings, hints, gaps and prints of tests and scripts")
    def action_show_runs(self) -> None:
        from pallas_debug.tui.panes.results import RunsScreen  # slows the start

        self.push_screen(RunsScreen(self.kernels.runs, opened=self._open_event))

    def _open_event(self, event: RunEvent) -> None:
        """Show the kernel of a finding or print, and its Python line."""
        if event.entry is None or not self.kernels.select(event.entry):
            self.show_message(f"the kernel {event.kernel} is not in this directory")
            return
        self.show_kernel()
        if event.source is None:
            return
        if event.source.file != self.browser.source_file(event.entry):
            self.show_message(f"{event.source} is not in the dumped source")
            return
        self.sourcing = True
        self.focus_on(self.source)
        self.source.cursor = event.source.line - 1

    # From text to text on the same Python line.

    def show_step(self) -> None:
        is_new = self._shown_place != self.place
        if is_new:
            self._remember_origin(self.place)
        super().show_step()
        self._seeks_origin = is_new and not self.diffing
        self._seek_origin(self.place)

    def _remember_origin(self, place: TextPlace | None) -> None:
        """Remember the Python line in the current text, before switching to another text."""
        shown = self._shown_place
        if shown is None or place is None or shown.entry != place.entry:
            self._origin = None
            return
        found = [s.place for s in self.text.origin]
        if self.sourcing and self.text.has_many_origins:  # prefer the chosen line
            found.sort(key=lambda line: line[1] != self.source.cursor + 1)
        if shown.step.stage == "source":
            found = [(self.browser.source_file(shown.entry) or "", self.text.cursor + 1)]
        for line in found:
            lines = self.lines_from(line, shown)
            if self.text.cursor in lines:
                self._origin = line, lines.index(self.text.cursor) / len(lines)
                return
        if self.text.cursor:  # the user moved to a line without a Python line
            self._origin = None

    def _seek_origin(self, place: TextPlace | None) -> None:
        """Go to a line of a new text from the same Python line, once its origins are known."""
        if not self._seeks_origin or self._origin is None or place is None:
            return
        if not self.text.linked or self.text.cursor:
            return
        self._seeks_origin = False
        line, share = self._origin
        if lines := self.lines_from(line, place):
            self.text.go_to(lines[int(share * len(lines))])

    @on(TextPane.TextChanged, "#text")
    def _seek_origin_later(self) -> None:
        if self.is_composed:
            self._seek_origin(self.place)


def _is_path(name: str, typed: str) -> bool:
    """Return whether the typed text is this path, or the end of it."""
    wanted = PurePath(typed).parts
    return bool(wanted) and PurePath(name).parts[-len(wanted) :] == wanted
