"""The app: three panes side by side, or one at a time where there is no room.

What the keys do is in `commands/`; here is what they act on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.command import Provider
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Input, Static

from pallas_debug.tui.actions import registry
from pallas_debug.tui.chooser import Chooser
from pallas_debug.tui.help import HelpScreen
from pallas_debug.tui.lineview import LineView, visible
from pallas_debug.tui.model import BEFORE, Against, Browser, Entry, Place, Step
from pallas_debug.tui.palette import Actions
from pallas_debug.tui.panes import KernelPane, SourcePane, StepPane, TextPane
from pallas_debug.tui.prompt import Prompt

T = TypeVar("T")

THREE_PANES, TWO_PANES = 120, 72
"""Columns from which on all panes are shown, and two of them."""

BOTH_ROWS = 18
"""Rows from which on the source is shown below the text."""


class BrowseApp(App[None]):
    """`pallas-debug browse`: kernels, their passes, and the text of each."""

    TITLE = "pallas-debug"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Actions}
    BINDINGS: ClassVar[list[BindingType]] = [a.binding() for a in registry().values() if a.keys]

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
    """

    zoomed: reactive[bool] = reactive(False)
    diffing: reactive[bool] = reactive(False)
    noise: reactive[bool] = reactive(False)
    sourcing: reactive[bool] = reactive(False)

    def __init__(self, browser: Browser) -> None:
        super().__init__()
        self.browser = browser
        self.wanted_target: str | None = None
        self.against: Against = BEFORE

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="panes"):
            yield KernelPane(self.browser, id="kernels")
            yield StepPane(id="steps")
            with Vertical(id="right"):
                yield TextPane(id="text")
                yield SourcePane(id="source")
        yield Prompt(id="prompt")
        yield Static(id="status", markup=False)

    def on_mount(self) -> None:
        self.kernels.focus()
        self.show_kernel()

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
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    @property
    def _panes(self) -> list[LineView]:
        """Those that the focus goes through."""
        panes: list[LineView] = [self.kernels, self.steps, self.text]
        return [*panes, self.source] if self.sourcing else panes

    # Where one is.

    @property
    def entry(self) -> Entry | None:
        """The kernel under the cursor."""
        return self.kernels.current

    @property
    def target(self) -> str | None:
        """The target that is shown: the one asked for, where the kernel has it."""
        return self.browser.target(self.entry, self.wanted_target) if self.entry else None

    @property
    def place(self) -> Place | None:
        """The text at hand."""
        if self.entry is None or self.steps.current is None:
            return None
        return Place(entry=self.entry, target=self.target, step=self.steps.current)

    @property
    def base(self) -> Place | None:
        """What it is compared with, where it is."""
        if not self.diffing or self.place is None:
            return None
        return self.browser.base(self.place, self.against)

    # What the panes show.

    @on(LineView.Moved, "#kernels")
    def show_kernel(self) -> None:
        """The passes of the kernel under the cursor; of one that failed, at the failing pass."""
        if self.entry is None:
            roots = " and ".join(map(str, self.browser.roots))
            self.say(f"no kernels in {roots}; `pallas-debug dump` makes some")
            return
        before = self.steps.current
        steps = self.browser.steps(self.entry, self.wanted_target)
        failing = self.browser.failing(self.entry, self.wanted_target, steps)
        at = before if failing is None else steps[failing]
        self.steps.show(steps, at or _first_shown(steps))
        self.show_step()

    @on(LineView.Moved, "#steps")
    def show_step(self) -> None:
        """The text of the step under the cursor, or what it is compared with another."""
        place = self.place
        if place is None:
            self.text.show([])
        elif self.diffing:
            self.text.show(self._change(place), is_diff=True)
        else:
            self.text.show(self.browser.lines(place))
        self._show_source()
        self.tell()

    def _change(self, place: Place) -> list[str]:
        base = self.base
        if base is None and self.against == BEFORE:
            return [f"there is nothing before {place.step.label}"]
        if base is None:
            return [f"there is nothing to compare {place.step.label} with; D chooses"]
        return self.browser.change(base, place, noise=self.noise)

    def watch_diffing(self) -> None:
        if self.query(KernelPane):
            self.show_step()

    def watch_noise(self) -> None:
        self.watch_diffing()

    def go_to_target(self, direction: int) -> None:
        """The next target of the kernel, or the previous one, at the same step."""
        if self.entry is None or self.target is None:
            return
        names = [c.target for c in self.browser.stored(self.entry).compilations]
        self.wanted_target = names[(names.index(self.target) + direction) % len(names)]
        self.show_kernel()

    # The source, and what comes from it.

    def watch_sourcing(self) -> None:
        if self.query(KernelPane):
            self._show_source()
            self._arrange()

    def _show_source(self) -> None:
        """The kernel's file, with how many lines of the text come from each of its lines."""
        if not self.sourcing or self.entry is None:
            return
        file = self.browser.source_file(self.entry)
        origins = self.text.module.from_source if self.text.module.lines else {}
        counts = {line: len(at) for (name, line), at in origins.items() if name == file}
        self.source.show(self.browser.source_lines(self.entry), counts)
        self._follow_text()

    def _follow_text(self) -> None:
        """The cursor of the source goes to the line that the text's line comes from."""
        file = self.browser.source_file(self.entry) if self.entry else None
        line = next((s.line for s in self.text.origin if s.file == file), None)
        if line is not None:
            self.source.cursor = line - 1

    @on(LineView.Moved, "#source")
    def _mark_origin(self) -> None:
        """What comes from the line of the source is marked in the text."""
        if not self.sourcing or self.entry is None:
            return
        file = self.browser.source_file(self.entry)
        origins = self.text.module.from_source if self.text.module.lines else {}
        at = origins.get((file or "", self.source.cursor + 1), [])
        self.text.mark_origin(at)
        if at and self.focused is self.source:
            self.text.cursor = next((i for i in at if i >= self.text.cursor), at[0])

    # What is said.

    @on(LineView.Moved, "#text")
    def tell(self) -> None:
        """The line above the panes says what is shown, the one below where one stands."""
        if self.entry is None:
            return
        if self.sourcing and self.focused is not self.source:
            self._follow_text()
        step = self.steps.current
        parts = [self.entry.name, self.target or "no target"]
        if len(self.browser.roots) > 1:
            parts.insert(0, str(self.browser.roots[self.entry.dump]))
        parts += [step.label] if step else []
        parts += [self._compared()] * self.diffing
        self.query_one("#title", Static).update(visible("  ›  ".join(parts)))
        compilation = self.browser.compilation(self.entry, self.wanted_target)
        failure = compilation and compilation.compilation and compilation.compilation.failure
        place = f"{self.text.cursor + 1}/{self.text.count}"
        found = f"  {self.text.where}" if self.text.where else ""
        said = f"  {failure.headline}" if failure else ""
        source = f"  {self.text.origin_text}" if self.text.origin else ""
        self.say(f"{place}{found}{source}{said}   ? help  q quit")

    def _compared(self) -> str:
        base, place = self.base, self.place
        with_noise = ", with noise" if self.noise else ""
        if self.against == BEFORE or base is None or place is None:
            return f"what it changed{with_noise}"
        return f"against {self.browser.label(base, place)}{with_noise}"

    def say(self, text: str) -> None:
        """In the line at the bottom, until something else is to be said."""
        self.query_one("#status", Static).update(visible(text))

    def show_help(self) -> None:
        self.push_screen(HelpScreen())

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

    async def action_perform(self, name: str) -> None:
        """Do what the registry has under a name."""
        done = registry()[name].run(self)
        if inspect.isawaitable(done):
            await done

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that move the focus act at once, ahead of what is typed after them.

        While something is asked for, or help lies on top, they are characters like any other.
        """
        if action != "perform" or not registry()[str(parameters[0])].ahead:
            return True
        return not (self.prompt.asking or len(self.screen_stack) > 1)

    def focus_pane(self, direction: int) -> None:
        """Panes that are away can be focused too: they come back by it."""
        panes = self._panes
        at = next((i for i, pane in enumerate(panes) if pane is self.focused), 0)
        self._focus(panes[(at + direction) % len(panes)])

    def _focus(self, wanted: LineView) -> None:
        for pane in (wanted, *wanted.ancestors):
            pane.remove_class("away")
        self.screen.set_focus(wanted)  # at once: the next key is for it

    def peel(self) -> None:
        """Close what is on top: only `q` leaves."""
        if self.prompt.asking:
            self.prompt.stop()
            self._focus(self.text)
        elif self.text.where:
            self.text.search(None)
            self.tell()
        elif self.diffing:
            self.diffing = False
            self.against = BEFORE
        elif self.zoomed:
            self.zoomed = False

    # What is asked for.

    def ask(
        self,
        what: str,
        *,
        value: str = "",
        typed: Callable[[str], None] | None = None,
        done: Callable[[str], None] | None = None,
    ) -> None:
        """Ask for something in the line at the bottom; see `Prompt.ask`."""
        self.prompt.ask(what, value=value, typed=typed, done=done)
        self.screen.set_focus(self.prompt)

    @on(Input.Submitted, "#prompt")
    def _asked(self) -> None:
        self._focus(self.text)
        self.prompt.finish()

    def choose(
        self, what: str, choices: Sequence[tuple[str, T]], chosen: Callable[[T | None], None]
    ) -> None:
        """Have one of several chosen; None where it is left."""
        screen: Chooser[Any] = Chooser(what, choices)
        self.push_screen(screen, chosen)


def _first_shown(steps: list[Step]) -> Step | None:
    """The kernel's own module before any pass, or the first text there is."""
    return next((s for s in steps if s.stage == "mosaic"), steps[0] if steps else None)
