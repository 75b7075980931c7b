"""The app: three panes side by side, or one at a time where there is no room."""

from __future__ import annotations

import re
from typing import ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Input, Static

from pallas_debug.tui.help import HelpScreen
from pallas_debug.tui.lineview import LineView, visible
from pallas_debug.tui.model import Browser, Step
from pallas_debug.tui.panes import KernelPane, SourcePane, StepPane, TextPane

THREE_PANES, TWO_PANES = 120, 72
"""Columns from which on all panes are shown, and two of them."""

BOTH_ROWS = 18
"""Rows from which on the source is shown below the text."""


class BrowseApp(App[None]):
    """`pallas-debug browse`: kernels, their passes, and the text of each."""

    TITLE = "pallas-debug"
    ENABLE_COMMAND_PALETTE = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "focus_next", "next pane", priority=True),
        Binding("shift+tab", "focus_previous", "previous pane", priority=True),
        Binding("enter", "into", "into the next pane", show=False),
        Binding("]", "step_changed(1)", "next pass that changed something"),
        Binding("[", "step_changed(-1)", "previous pass that changed something"),
        Binding("}", "step(1)", "next pass"),
        Binding("{", "step(-1)", "previous pass"),
        Binding("t", "target(1)", "next target"),
        Binding("T", "target(-1)", "previous target"),
        Binding("H", "hide_same", "hide passes that changed nothing"),
        Binding("L", "locations", "fold locations away"),
        Binding("slash", "search", "search", priority=True),
        Binding("n", "hit(1)", "next hit"),
        Binding("N", "hit(-1)", "previous hit"),
        Binding("colon", "go_to", "go to a line", priority=True),
        Binding("d", "diff", "what the pass changed"),
        Binding("i", "noise", "count noise as change: value numbers, locations, attribute order"),
        Binding("o", "source", "Python source below the text, linked both ways"),
        Binding("x", "use", "next use of the line's value"),
        Binding("X", "definition", "definition of the line's first operand"),
        Binding("z", "zoom", "zoom a pane"),
        Binding("y", "copy", "copy the line"),
        Binding("question_mark", "help", "help"),
        Binding("escape", "peel", "close what is on top"),
        Binding("q", "quit", "quit"),
    ]

    CSS = """
    Screen { layout: vertical; }
    #panes { height: 1fr; }
    LineView { border: none; height: 1fr; }
    KernelPane { width: 2fr; min-width: 24; }
    StepPane { width: 2fr; min-width: 24; border-left: vkey $surface-lighten-2; }
    #right { width: 5fr; border-left: vkey $surface-lighten-2; }
    SourcePane { border-top: hkey $surface-lighten-2; }
    .away { display: none; }
    #title, #status { height: 1; background: $panel; padding: 0 1; }
    #prompt { height: 1; border: none; padding: 0 1; display: none; }
    #prompt.asking { display: block; }
    """

    target: reactive[str | None] = reactive(None)
    zoomed: reactive[bool] = reactive(False)
    diffing: reactive[bool] = reactive(False)
    noise: reactive[bool] = reactive(False)
    sourcing: reactive[bool] = reactive(False)

    def __init__(self, browser: Browser) -> None:
        super().__init__()
        self._browser = browser
        self._asking = ""

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="panes"):
            yield KernelPane(self._browser, id="kernels")
            yield StepPane(id="steps")
            with Vertical(id="right"):
                yield TextPane(id="text")
                yield SourcePane(id="source")
        yield Input(id="prompt", compact=True)
        yield Static(id="status", markup=False)

    def on_mount(self) -> None:
        self.kernels.focus()
        self._show_kernel()

    @property
    def kernels(self) -> KernelPane:
        return self.query_one(KernelPane)

    @property
    def steps(self) -> StepPane:
        return self.query_one(StepPane)

    @property
    def text(self) -> TextPane:
        return self.query_one(TextPane)

    @property
    def source(self) -> SourcePane:
        return self.query_one(SourcePane)

    @property
    def _panes(self) -> list[LineView]:
        """Those that the focus goes through."""
        panes: list[LineView] = [self.kernels, self.steps, self.text]
        return [*panes, self.source] if self.sourcing else panes

    # What the panes show.

    @on(LineView.Moved, "#kernels")
    def _show_kernel(self) -> None:
        if not self._browser.names:
            self._say(f"no kernels in {self._browser.root}; `pallas-debug dump` makes some")
            return
        number, before = self.kernels.cursor, self.steps.current
        steps = self._browser.steps(number, self.target)
        failing = self._browser.failing(number, self.target, steps)
        at = before if failing is None else steps[failing]
        self.steps.show(steps, at or _first_shown(steps))
        self._show_step()

    @on(LineView.Moved, "#steps")
    def _show_step(self) -> None:
        step, number = self.steps.current, self.kernels.cursor
        if step is None:
            self.text.show([])
        elif self.diffing:
            steps = self.steps.all_steps
            lines = self._browser.change(number, self.target, steps, step, noise=self.noise)
            self.text.show(lines, is_diff=True)
        else:
            self.text.show(self._browser.lines(number, self.target, step))
        self._show_source()
        self._tell()

    def watch_diffing(self) -> None:
        if self.query(KernelPane):
            self._show_step()

    def watch_noise(self) -> None:
        self.watch_diffing()

    # The source, and what comes from it.

    def watch_sourcing(self) -> None:
        if self.query(KernelPane):
            self._show_source()
            self._arrange()

    def _show_source(self) -> None:
        """The kernel's file, with how many lines of the text come from each of its lines."""
        if not self.sourcing or not self._browser.names:
            return
        file = self._browser.source_file(self.kernels.cursor)
        origins = self.text.module.from_source if self.text.module.lines else {}
        counts = {line: len(at) for (name, line), at in origins.items() if name == file}
        self.source.show(self._browser.source_lines(self.kernels.cursor), counts)
        self._follow_text()

    def _follow_text(self) -> None:
        """The cursor of the source goes to the line that the text's line comes from."""
        file = self._browser.source_file(self.kernels.cursor)
        line = next((s.line for s in self.text.origin if s.file == file), None)
        if line is not None:
            self.source.cursor = line - 1

    @on(LineView.Moved, "#source")
    def _mark_origin(self) -> None:
        """What comes from the line of the source is marked in the text."""
        if not self.sourcing or not self._browser.names:
            return
        file = self._browser.source_file(self.kernels.cursor)
        origins = self.text.module.from_source if self.text.module.lines else {}
        at = origins.get((file or "", self.source.cursor + 1), [])
        self.text.mark_origin(at)
        if at and self.focused is self.source:
            self.text.cursor = next((i for i in at if i >= self.text.cursor), at[0])

    @on(LineView.Moved, "#text")
    def _tell(self) -> None:
        """The line above the panes says what is shown, the one below where one stands."""
        if not self._browser.names:
            return
        if self.sourcing and self.focused is not self.source:
            self._follow_text()
        number = self.kernels.cursor
        compilation = self._browser.compilation(number, self.target)
        step = self.steps.current
        parts = [self._browser.names[number], compilation.target if compilation else "no target"]
        parts += [step.label] if step else []
        parts += ["what it changed" + (", with noise" if self.noise else "")] * self.diffing
        self.query_one("#title", Static).update(visible("  ›  ".join(parts)))
        failure = compilation and compilation.compilation and compilation.compilation.failure
        place = f"{self.text.cursor + 1}/{self.text.count}"
        found = f"  {self.text.where}" if self.text.where else ""
        said = f"  {failure.headline}" if failure else ""
        source = f"  {self.text.origin_text}" if self.text.origin else ""
        self._say(f"{place}{found}{source}{said}   ? help  q quit")

    def _say(self, text: str) -> None:
        self.query_one("#status", Static).update(visible(text))

    # How much room there is.

    def on_resize(self) -> None:
        self._arrange()

    def on_descendant_focus(self) -> None:
        self._arrange()

    def watch_zoomed(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """All panes, or those around the focused one, or that one alone."""
        if not self.query(KernelPane):
            return
        columns: list[list[LineView]] = [[self.kernels], [self.steps], [self.text, self.source]]
        focused = next(
            (i for i, column in enumerate(columns) if any(pane is self.focused for pane in column)),
            None,
        )
        if focused is None:
            return
        width = self.size.width
        if self.zoomed or width < TWO_PANES:
            shown = {focused}
        elif width < THREE_PANES:
            shown = {0, 1} if focused == 0 else {1, 2}
        else:
            shown = {0, 1, 2}
        self.kernels.set_class(0 not in shown, "away")
        self.steps.set_class(1 not in shown, "away")
        self.query_one("#right").set_class(2 not in shown, "away")
        alone = self.zoomed or self.size.height < BOTH_ROWS
        in_source = self.sourcing and self.focused is self.source
        self.source.set_class(not self.sourcing or (alone and not in_source), "away")
        self.text.set_class(alone and in_source, "away")

    # What the keys do.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that move the focus act at once, ahead of what is typed after them.

        While something is asked for, or help lies on top, they are characters like any other.
        """
        moves_focus = action in ("search", "go_to", "focus_next", "focus_previous")
        return not (moves_focus and (self._asking or len(self.screen_stack) > 1))

    def action_into(self) -> None:
        if self.focused is not self.text:
            self._focus(1)

    def action_focus_next(self) -> None:
        self._focus(1)

    def action_focus_previous(self) -> None:
        self._focus(-1)

    def _focus(self, direction: int) -> None:
        """Panes that are away can be focused too: they come back by it."""
        panes = self._panes
        at = next((i for i, pane in enumerate(panes) if pane is self.focused), 0)
        wanted = panes[(at + direction) % len(panes)]
        for pane in (wanted, *wanted.ancestors):
            pane.remove_class("away")
        self.screen.set_focus(wanted)  # at once: the next key is for it

    def action_step_changed(self, direction: int) -> None:
        self.steps.next_changed(direction)

    def action_step(self, direction: int) -> None:
        self.steps.cursor += direction

    def action_target(self, direction: int) -> None:
        if not self._browser.names:
            return
        names = [c.target for c in self._browser.kernel(self.kernels.cursor).compilations]
        current = self._browser.compilation(self.kernels.cursor, self.target)
        if current is not None:
            at = names.index(current.target)
            self.target = names[(at + direction) % len(names)]
            self._show_kernel()

    def action_hide_same(self) -> None:
        self.steps.only_changed = not self.steps.only_changed

    def action_locations(self) -> None:
        self.text.folded = not self.text.folded

    def action_diff(self) -> None:
        self.diffing = not self.diffing

    def action_source(self) -> None:
        if self.focused is self.source:
            self._focus(-1)
        self.sourcing = not self.sourcing

    def action_noise(self) -> None:
        self.noise = not self.noise

    def action_use(self) -> None:
        self.text.next_use()

    def action_definition(self) -> None:
        self.text.to_definition()

    def action_zoom(self) -> None:
        self.zoomed = not self.zoomed

    def action_copy(self) -> None:
        if self.text.count:
            self.copy_to_clipboard(self.text.line(self.text.cursor))
            self._say("copied the line")

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.BINDINGS, LineView.BINDINGS))

    def action_peel(self) -> None:
        if self._asking:
            self._stop_asking()
        elif self.text.where:
            self.text.search(None)
            self._tell()
        elif self.diffing:
            self.diffing = False
        elif self.zoomed:
            self.zoomed = False

    # What is asked for in the line at the bottom.

    def action_search(self) -> None:
        self._ask("search")

    def action_go_to(self) -> None:
        self._ask("line")

    def action_hit(self, direction: int) -> None:
        self.text.next_hit(direction)
        self._tell()

    def _ask(self, what: str) -> None:
        self._asking = what
        prompt = self.query_one("#prompt", Input)
        prompt.placeholder = "regular expression" if what == "search" else "line"
        prompt.value = ""
        prompt.add_class("asking")
        self.screen.set_focus(prompt)

    def _stop_asking(self) -> None:
        self._asking = ""
        self.query_one("#prompt", Input).remove_class("asking")
        for pane in (self.text, *self.text.ancestors):
            pane.remove_class("away")
        self.screen.set_focus(self.text)

    @on(Input.Changed, "#prompt")
    def _typed(self, event: Input.Changed) -> None:
        if self._asking == "search":
            self.text.search(_pattern(event.value))
            self.text.next_hit(1, here=True)
            self._tell()

    @on(Input.Submitted, "#prompt")
    def _asked(self, event: Input.Submitted) -> None:
        asking, value = self._asking, event.value.strip()
        self._stop_asking()
        if asking == "line" and value.isdecimal():
            self.text.cursor = int(value) - 1


def _first_shown(steps: list[Step]) -> Step | None:
    """The kernel's own module before any pass, or the first text there is."""
    return next((s for s in steps if s.stage == "mosaic"), steps[0] if steps else None)


def _pattern(text: str) -> re.Pattern[str] | None:
    """What was typed as a regular expression, or as it stands while it is none."""
    if not text:
        return None
    flags = 0 if any(c.isupper() for c in text) else re.IGNORECASE
    try:
        return re.compile(text, flags)
    except re.error:
        return re.compile(re.escape(text), flags)
