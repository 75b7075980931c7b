"""Actions that move between panes, kernels, passes and targets, or go to a place by name.

When switching between texts of a kernel, the cursor stays on its operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from textual import on

from pallas_debug.ir.operations import Module
from pallas_debug.render import plural
from pallas_debug.tui.keys import HEADINGS, action, display_keys, registry
from pallas_debug.tui.model.browser import BEFORE, TextPlace, kernel_name
from pallas_debug.tui.model.origins import moved_to
from pallas_debug.tui.model.runs import RunEvent
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.widgets.choices import Choice
from pallas_debug.tui.workspace import Workspace

Go = Callable[[], object]


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

    @action("pane.into", "enter", "into the next pane; filter a diff")
    def action_into_pane(self) -> None:
        if self.focused is self.diff:
            self.diff.choose()
        elif self.focused in (self.kernels, self.steps):
            self.focus_pane(1)

    @action("pane.zoom", "z", "zoom a pane")
    def action_zoom_pane(self) -> None:
        self.zoomed = not self.zoomed

    @action("list.filter", "f", "filter the kernels", priority=True)
    def action_filter_kernels(self) -> None:
        self.prompt.ask(
            "part of the name, failed",
            value=self.kernels.filter_text,
            typed=self.kernels.filter,
            done=lambda _: self.focus_on(self.kernels),
        )

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

    @action("target.next", "t", "next target")
    def action_next_target(self) -> None:
        """Show the next target at the same step."""
        if self.entry is None or self.target is None:
            return
        names = [c.target for c in self.browser.stored(self.entry).compilations]
        self.wanted_target = names[(names.index(self.target) + 1) % len(names)]
        self.show_kernel()

    # Findings and prints.

    @action("runs.show", "R", "findings, hints, gaps and prints of tests and scripts")
    def action_show_runs(self) -> None:
        runs = self.kernels.runs
        if not runs.results:
            hint = "; run pytest with --pallas-interpret or --pallas-check to get some"
            self.show_message(f"no findings{hint}" if runs.whole else "reading the findings…")
            return
        choices = [Choice(event.listed, event, event.place) for event in runs.results]
        first = f", the first {len(choices):,}" if runs.count > len(choices) else ""
        title = f"{runs.count:,} findings, hints, gaps and prints{first}"
        self.choose(title, choices, self._open_event)

    def _open_event(self, event: RunEvent | None) -> None:
        """Show the kernel of a finding or print, and its Python line."""
        if event is None:
            return
        if event.entry is None:
            self.show_message(f"the kernel {event.kernel} is not in this directory")
            return
        self.go_to_kernel(event.entry)
        if event.source is None:
            return
        if event.source.file != self.browser.source_file(event.entry):
            self.show_message(f"{event.source} is not in the dumped source")
            return
        self._go_to_source(event.source.line)

    # Any place, by letters of its name.

    @action(
        "go.to",
        "colon,ctrl+p",
        "go to a kernel, pass, target, line or action, by parts of its name",
        priority=True,
    )
    def action_go_to(self) -> None:
        def chosen(go: Go | None) -> None:
            if go is not None:
                go()

        places = [*self._places(), *self._actions()]
        self.choose("Go to", places, chosen, typed=self._typed_places)

    def _typed_places(self, text: str) -> list[Choice[Go]]:
        """Return the line of the text that a number names."""
        if text.isdecimal():
            return [Choice(f"line {text}", partial(self._go_to_line, int(text)), "this text")]
        return []

    def _places(self) -> Iterator[Choice[Go]]:
        for step in self.steps.steps:
            kind = "pass" if step.pass_ else "stage"
            yield Choice(step.label, partial(self.go_to_step, step), kind)
        for entry in self.browser.entries:
            label = self.kernels.list.label(entry)
            yield Choice(label, partial(self.go_to_kernel, entry), "kernel")
        if self.entry is None:
            return
        for compilation in self.browser.stored(self.entry).compilations:
            yield Choice(
                compilation.target, partial(self._go_to_target, compilation.target), "target"
            )
        if self.browser.source_file(self.entry):
            for number, text in enumerate(self.browser.source_lines(self.entry), 1):
                if text.strip():
                    go = partial(self._go_to_source, number)
                    yield Choice(f"{number}  {text.strip()}", go, "Python line")

    def _actions(self) -> Iterator[Choice[Go]]:
        for found in registry().values():
            if found.name != "go.to":
                note = display_keys(found.keys) or HEADINGS[found.group].lower()
                yield Choice(
                    found.title, partial(self.call_later, self.run_action, found.call), note
                )

    def _go_to_line(self, number: int) -> None:
        self.text.cursor = max(number, 1) - 1
        if number > self.text.count:
            self.show_message(f"there are {plural(self.text.count, 'line')}")

    def _go_to_target(self, target: str) -> None:
        self.wanted_target = target
        self.show_kernel()

    def _go_to_source(self, line: int) -> None:
        """Show a line of the Python source, and the operations that come from it."""
        self.sourcing = True
        self.focus_on(self.source)
        self.source.cursor = line - 1

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
                self.text.cursor = line
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
            self.text.cursor = found[0]
        self._landed = self.text.cursor


class _Anchor(NamedTuple):
    """Line to which the cursor stays, from text to text."""

    place: TextPlace
    module: Module
    line: int
