"""The app: three panes side by side, or one at a time where there is no room.

What the keys do is in `commands/`; here is what they act on.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

from rich.console import RenderableType
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Static

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.normal import NOISE
from pallas_debug.ir.operations import Module
from pallas_debug.ir.text import Document
from pallas_debug.tui import follow, later, opening
from pallas_debug.tui.diffpane import Compared, DiffPane
from pallas_debug.tui.everywhere import Search
from pallas_debug.tui.failurepane import FailurePane
from pallas_debug.tui.find import FindView
from pallas_debug.tui.keymap import Keymap
from pallas_debug.tui.lineview import LineView
from pallas_debug.tui.listpane import ListPane
from pallas_debug.tui.model import BEFORE, Against, Browser, Entry, Place, Step
from pallas_debug.tui.panes import KernelPane, SourcePane, StepPane, TextPane
from pallas_debug.tui.prompt import Prompt
from pallas_debug.tui.shell import Shell
from pallas_debug.tui.state import Spot
from pallas_debug.tui.trail import TrailPane

THREE_PANES, TWO_PANES = 120, 72
"""Columns from which on all panes are shown, and two of them."""

BOTH_ROWS = 18
"""Rows from which on the source is shown below the text."""


class BrowseApp(Shell):
    """`pallas-debug browse`: kernels, their passes, and the text of each.

    Args:
      spot: where to open.
      keymap: the keys, where they are not the default ones.
      colors: whether there may be any.
      notes: what is to be said at the start.
    """

    TITLE = "pallas-debug"

    CSS = """
    Screen { layout: vertical; }
    #panes { height: 1fr; }
    LineView { border: none; height: 1fr; }
    KernelPane { width: 2fr; min-width: 24; }
    #middle { width: 2fr; min-width: 24; border-left: vkey $surface-lighten-2; }
    #right { width: 5fr; border-left: vkey $surface-lighten-2; }
    SourcePane, TrailPane { border-top: hkey $surface-lighten-2; }
    .away { display: none; }
    #title, #status {
        height: 1; background: $panel; padding: 0 1;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    #title:nocolor, #status:nocolor { text-style: reverse; }
    """

    zoomed: reactive[bool] = reactive(False)
    diffing: reactive[bool] = reactive(False)
    noise: reactive[bool] = reactive(False)
    sourcing: reactive[bool] = reactive(False)
    trailing: reactive[bool] = reactive(False)
    following: reactive[bool] = reactive(False)

    def __init__(
        self,
        browser: Browser,
        *,
        spot: Spot | None = None,
        keymap: Keymap | None = None,
        colors: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(keymap=keymap, colors=colors)
        self.browser = browser
        self._spot = spot
        self.last: Spot | None = None
        """Where one was when the app ended."""
        self._notes = notes
        self._document: Document | None = None
        self._shown_place: Place | None = None
        self._listed: tuple[Entry | None, str | None] | None = None
        """The kernel, and the target asked for, whose steps are listed."""
        self._placed: Place | None = None
        """The place that the text, or the diff, is of."""
        self.trail_steps: list[Step] = []
        self.watched = follow.Watch(browser)
        self.wanted_target: str | None = None
        self.against: Against = BEFORE
        self.search = Search(browser)
        self.back_to: LineView | None = None
        """The pane that the focus goes back to when nothing is asked for any more."""

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="panes"):
            yield KernelPane(self.browser, id="kernels")
            with Vertical(id="middle"):
                yield StepPane(id="steps")
            with Vertical(id="right"):
                yield FailurePane(id="failure")
                yield TextPane(id="text")
                yield DiffPane(id="diff")
                yield TrailPane(id="trail")
                yield SourcePane(id="source")
        yield Prompt(id="prompt")
        yield Static(id="status", markup=False)

    def on_mount(self) -> None:
        self._focus(self.kernels)
        self.show_kernel()
        if self.is_file:
            self.zoomed = True
            self._focus(self.text)
        else:
            self.set_timer(later.LATER, self._load_more)
        if self._spot is not None:
            opening.restore(self, self._spot)
        if self._notes:
            self.say("; ".join(self._notes))
        self.watch_terminal()
        self.call_after_refresh(_collect_again)
        self.set_interval(follow.SECONDS, lambda: follow.look(self))

    def _load_more(self) -> None:
        self.run_worker(later.load, thread=True, group="later")

    @property
    def kernels(self) -> KernelPane:
        return self.query_one(KernelPane)

    @property
    def steps(self) -> StepPane:
        return self.query_one(StepPane)

    @property
    def failure(self) -> FailurePane:
        return self.query_one(FailurePane)

    @property
    def text(self) -> TextPane:
        return self.query_one(TextPane)

    @property
    def diff(self) -> DiffPane:
        return self.query_one(DiffPane)

    @property
    def trail(self) -> TrailPane:
        return self.query_one(TrailPane)

    @property
    def shown(self) -> FindView:
        """The text at hand: that of a step, or a diff of two."""
        return self.diff if self.base is not None else self.text

    @property
    def line(self) -> int | None:
        """The line of the step's text that the cursor stands on, from 0."""
        return self.diff.place[1] if self.shown is self.diff else self.text.cursor

    @property
    def source(self) -> SourcePane:
        return self.query_one(SourcePane)

    @property
    def is_file(self) -> bool:
        """Whether a single file is shown, and no kernel."""
        return isinstance(self.browser, opening.SingleFile)

    @property
    def _panes(self) -> list[LineView]:
        """Those that the focus goes through."""
        panes: list[LineView] = [self.kernels, self.steps]
        panes += [self.failure] if self.failure.report else []
        panes += [self.shown]
        panes += [self.trail] if self.trailing else []
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

    @on(LineView.Moved, "#kernels, #steps")
    def settle(self) -> None:
        """Show what the cursors of the lists stand on, if it is not shown yet.

        Keys may be typed faster than what they lead to is shown: what is for the text waits for it.
        """
        if self._listed != (self.entry, self.wanted_target):
            self.show_kernel()
        elif self._placed != self.place:
            self.show_step()

    def before_key(self) -> None:
        if self._listed is not None and self.focused not in (self.kernels, self.steps):
            self.settle()

    def show_kernel(self) -> None:
        """The passes of the kernel under the cursor; of one that failed, at the failing pass."""
        self._listed = self.entry, self.wanted_target
        if self.entry is None:
            if self.browser.entries:
                self.say("no kernel is as the filter wants it; f changes it")
            else:
                roots = " and ".join(map(str, self.browser.roots))
                self.say(f"no kernels in {roots}; `pallas-debug dump` makes some")
            return
        before = self.steps.current
        steps = self.browser.steps(self.entry, self.wanted_target)
        failing = self.browser.failing(self.entry, self.wanted_target, steps)
        at = before if failing is None else steps[failing]
        self.steps.show(steps, at or _first_shown(steps))
        self.steps.count_changes(self.browser, self.entry, self.wanted_target)
        self.failure.show(self.browser, self.entry, self.wanted_target)
        self.show_step()
        if self.place is not None and failing is not None:
            self.failure.land(self.browser, self.place)

    @on(FailurePane.Landed)
    def _land(self, event: FailurePane.Landed) -> None:
        """The cursor goes to the operation at which the kernel failed."""
        if event.place == self.place and not self.diffing:
            self.text.go_to(event.line)

    def show_step(self) -> None:
        """The text of the step under the cursor, or what it is compared with another."""
        place = self._placed = self.place
        base = self.base
        in_text = self.focused in (self.text, self.diff)
        before, self._document = self._document, None
        if place != self._shown_place:
            self.text.selected_from = self.diff.selected_from = None
        if place is None:
            self.text.show([])
        elif base is not None:
            self.text.show([])
            self.diff.compare(self._to_compare(base, place), self._to_compare(place, base))
        elif self.diffing:
            self.text.show([self._without_base(place)], is_diff=True)
        else:
            keep = self.text.cursor if place == self._shown_place else 0
            self.text.show(self._open(place), keep=keep)
        self._shown_place = place if base is None else None
        if before is not None:
            before.close()
        self._arrange()
        if in_text:
            self._focus(self.shown)
        self._show_source()
        self.tell()

    def _to_compare(self, place: Place, other: Place) -> Compared:
        browser = self.browser
        return Compared(
            label=browser.label(place, other),
            size=browser.size(place),
            read=partial(browser.lines, place),
        )

    def _open(self, place: Place) -> Document | list[str]:
        """A step's text as its file has it; what is in none, or cannot be read, by lines."""
        try:
            file = self.browser.file(place)
            self._document = Document.open(file.path, file.open)
        except (PallasDebugError, OSError):
            return self.browser.lines(place)
        return self._document

    def _without_base(self, place: Place) -> str:
        if self.against == BEFORE:
            return f"there is nothing before {place.step.label}"
        return f"there is nothing to compare {place.step.label} with; D chooses"

    def watch_diffing(self) -> None:
        if self.query(KernelPane):
            self.show_step()

    def watch_noise(self) -> None:
        if self.query(KernelPane):
            self.diff.ignore = () if self.noise else NOISE
            self.tell()

    def follow_operation(self) -> None:
        """What became of the operation under the cursor, in a pane below the text."""
        place, line = self.place, self.line
        if place is None or line is None:
            return
        steps = [s for s in self.steps.all_steps if s.changed and (s.pass_ or s == place.step)]
        if place.step not in steps or not place.step.pass_:
            self.say("an operation is followed through passes; this is none")
            return
        texts = [Place(entry=place.entry, target=place.target, step=step) for step in steps]
        browser = self.browser
        self.trail_steps = steps
        self.trailing = True
        self.trail.follow(
            lambda: [Module(browser.lines(text)) for text in texts],
            [step.label for step in steps],
            steps.index(place.step),
            line,
        )
        self._arrange()
        self._focus(self.trail)

    @on(TrailPane.Chosen)
    def _go_along(self, event: TrailPane.Chosen) -> None:
        self.go_to_step(self.trail_steps[event.position])
        self.text.go_to(event.line)
        self._focus(self.trail)

    def watch_trailing(self) -> None:
        if self.query(KernelPane):
            self._arrange()

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

    def made_from(self, line: int) -> Sequence[int]:
        """The lines of the text, from 0, that come from a line of the kernel's file, from 1."""
        file = self.browser.source_file(self.entry) if self.entry else None
        origins = self.text.module.from_source if self.text.module.lines else {}
        return origins.get((file or "", line), [])

    @on(LineView.Moved, "#source")
    def _mark_origin(self) -> None:
        """What comes from the line of the source is marked in the text."""
        if not self.sourcing or self.entry is None:
            return
        at = self.made_from(self.source.cursor + 1)
        self.text.mark_origin(at)
        if at and self.focused is self.source:
            self.text.cursor = next((i for i in at if i >= self.text.cursor), at[0])

    # What is said.

    @on(LineView.Moved, "#text, #diff")
    @on(TextPane.Changed)
    @on(DiffPane.Changed)
    @on(FindView.Found)
    def tell(self) -> None:
        """The line above the panes says what is shown, the one below where one stands."""
        if not self.query(KernelPane) or self.entry is None:  # the app ends, or there is nothing
            return
        if self.sourcing and self.focused is not self.source:
            self._follow_text()
        step, shown = self.steps.current, self.shown
        parts = [self.entry.name, self.target or "no target"]
        if len(self.browser.roots) > 1:
            parts.insert(0, str(self.browser.roots[self.entry.dump]))
        parts += [step.label] if step else []
        parts += [self._compared()] * self.diffing
        self.head([str(self.browser.roots[0])] if self.is_file else parts)
        compilation = self.browser.compilation(self.entry, self.wanted_target)
        failure = compilation and compilation.compilation and compilation.compilation.failure
        self.stand(
            [
                f"{shown.cursor + 1:,}/{shown.count:,}",
                shown.where or self.search.said,
                f"{len(shown.selected):,} selected" if shown.selected else "",
                "following" if self.following else "",
                shown.problem,
                self.diff.state if shown is self.diff else self.text.origin_text,
                "" if shown is self.diff else self.text.state,
                failure.headline if failure else "",
                "? help  q quit",
            ]
        )

    def _compared(self) -> str:
        base, place = self.base, self.place
        with_noise = ", with noise" if self.noise else ""
        if self.against == BEFORE or base is None or place is None:
            return f"what it changed{with_noise}"
        return f"against {self.browser.label(base, place)}{with_noise}"

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
        columns: list[list[LineView]] = [
            [self.kernels],
            [self.steps],
            [self.failure, self.text, self.diff, self.trail, self.source],
        ]
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
        self.query_one("#middle").set_class(1 not in shown, "away")
        self.query_one("#right").set_class(2 not in shown, "away")
        alone = self.zoomed or self.size.height < BOTH_ROWS
        panes_below: list[LineView] = [self.source, self.trail]
        below = next((pane for pane in panes_below if pane is self.focused), None)
        for extra, is_there in ((self.source, self.sourcing), (self.trail, self.trailing)):
            extra.set_class(not is_there or (alone and extra is not below), "away")
        for pane in (self.text, self.diff):
            pane.set_class(pane is not self.shown or (alone and below is not None), "away")

    # What the keys do.

    def focus_pane(self, direction: int) -> None:
        """Panes that are away can be focused too: they come back by it."""
        panes = self._panes
        at = next((i for i, pane in enumerate(panes) if pane is self.focused), 0)
        self._focus(panes[(at + direction) % len(panes)])

    def _focus(self, wanted: LineView) -> None:
        for pane in (wanted, *wanted.ancestors):
            pane.remove_class("away")
        self.screen.set_focus(wanted)  # at once: the next key is for it

    def leave(self, pane: LineView) -> None:
        """The focus goes from a pane that goes away to the text."""
        if self.focused is pane:
            self._focus(self.shown)

    def exit(
        self, result: None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        self.last = self.last or opening.current(self)
        self.ending = True
        super().exit(result, return_code, message)

    def peel(self) -> None:
        """Close what is on top: only `q` leaves."""
        if self.prompt.asking:
            self.prompt.stop()
            self.after_prompt()
        elif self.shown.selected_from is not None:
            self.shown.selected_from = None
            self.tell()
        elif self.shown is self.text and self.text.narrowed:
            self.text.narrow(False)
            self.tell()
        elif self.search.peel() or any(pane.peel() for pane in self._filtered()):
            if not self.search.active:
                self.text.mark(None)
            self.tell()
        elif self.shown.where:
            self.shown.search(None)
            self.tell()
        elif self.shown is self.diff and self.diff.stop():
            self.tell()
        elif self.trailing:
            self.leave(self.trail)
            self.trailing = False
        elif self.diffing:
            self.diffing = False
            self.against = BEFORE
        elif self.zoomed:
            self.zoomed = False

    def _filtered(self) -> list[ListPane]:
        """The lists, that of the focus first."""
        return sorted([self.kernels, self.steps], key=lambda pane: pane is not self.focused)

    def after_prompt(self) -> None:
        self._focus(self.back_to or self.shown)
        self.back_to = None

    def on_click(self, event: events.Click) -> None:
        """A second click goes into what the first one selected."""
        pane = event.widget
        if event.chain == 2 and isinstance(pane, LineView) and pane in self._panes:
            self.call_later(self.action_perform, "pane.into")

    # Going somewhere.

    def go_to_kernel(self, entry: Entry) -> None:
        """Show a kernel, wherever one is."""
        self.kernels.select(entry)
        self.show_kernel()

    def go_to_step(self, step: Step) -> None:
        """Show a step of the kernel at hand, even one that is hidden."""
        self.steps.select(step.label)
        self.show_step()

    def watch_following(self) -> None:
        if self.query(KernelPane):
            self.tell()


def _collect_again() -> None:
    """What was made at the start stays; the command had no garbage collected until now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _first_shown(steps: list[Step]) -> Step | None:
    """The kernel's own module before any pass, or the first text there is."""
    return next((s for s in steps if s.stage == "mosaic"), steps[0] if steps else None)
