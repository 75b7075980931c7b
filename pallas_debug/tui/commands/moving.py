"""Actions that move between panes, kernels, passes and targets, or go to a place by name.

When switching between texts of a kernel, the cursor stays on its operation.
"""

from __future__ import annotations

from typing import NamedTuple

from textual import on

from pallas_debug.ir.operations import Module
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import BEFORE, TextPlace, kernel_name
from pallas_debug.tui.model.origins import moved_to
from pallas_debug.tui.model.runs import RunEvent
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.workspace import Workspace


class MovingActions(Workspace):
    """Mixin with actions that go to another place."""

    _anchor: _Anchor | None = None
    _landed = -1
    """Line to which the cursor followed the anchor."""
    _diffed: tuple[TextPlace, TextPlace] | None = None
    """Texts of the diff that is shown."""
    _seeks = False
    """Whether the cursor still has to follow the anchor to the text."""

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

    # Kernels.

    @action("list.filter", "f", "filter the list of kernels or passes", priority=True)
    def action_filter_list(self) -> None:
        pane = self.steps if self.focused is self.steps else self.kernels
        self.back_to = pane
        self.prompt.ask(pane.filter_hint, value=pane.filter_text, typed=pane.filter)

    @action("kernels.other_dump", "B", "the kernel in the other directory")
    def action_other_dump(self) -> None:
        other = self.browser.counterpart(self.entry) if self.entry else None
        if other is not None:
            self.go_to_kernel(other)

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

    @action("pass.grew", "plus", "where the pass that added most operations added them")
    def action_show_growth(self) -> None:
        step = self.steps.grew_most
        if step is None:
            self.show_message("no pass is known to have added operations")
            return
        self.against = BEFORE
        self.go_to_step(step)
        self.diffing = True
        self.focus_on(self.diff)

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

    # From text to text at the same operation.

    def show_step(self) -> None:
        place, diffed = self.place, self._diffed
        is_new = self._shown_place != place
        if is_new:
            self._remember()
        super().show_step()
        if is_new:
            self._landed = self.text.cursor
        self._seeks, self._diffed = is_new and not self.diffing, self.compared
        if self._seeks and diffed is not None and place in diffed:
            line = self.diff.place[diffed.index(place)]
            if line is not None:
                self.text.go_to(line)
        self._seek()

    def _remember(self) -> None:
        """Remember the line under the cursor, unless the cursor only followed another line."""
        shown, text = self._shown_place, self.text
        if shown is not None and text.linked and text.cursor != self._landed:
            self._anchor = _Anchor(shown, text.module, text.cursor)

    @on(TextPane.TextChanged, "#text")
    def _seek(self) -> None:
        """Go to what the remembered line became, once the text is parsed."""
        place, anchor = self.place, self._anchor
        if not self._seeks or anchor is None or place is None or not self.text.linked:
            return
        self._seeks = False
        if self.text.cursor != self._landed:  # it has been moved meanwhile
            return
        from pallas_debug.ir.follow import counterparts  # slows the start

        if kernel_name(place.entry.name) != kernel_name(anchor.place.entry.name):
            return
        moved = moved_to(self.browser, anchor.place.entry, place.entry)
        found = counterparts(anchor.module, anchor.line, self.text.module, moved)
        if not found and not anchor.module.source(anchor.line):
            same = anchor.place.step.name == place.step.name
            found = [anchor.line] if same and anchor.line < self.text.count else []
        if found:
            self.text.go_to(found[0])
        self._landed = self.text.cursor


class _Anchor(NamedTuple):
    """Line to which the cursor stays, from text to text."""

    place: TextPlace
    module: Module
    line: int
