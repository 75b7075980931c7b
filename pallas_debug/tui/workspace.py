"""Main screen: its panes, their contents, and their layout.

Actions that change it are in `commands/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import PurePath

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.reactive import reactive
from textual.widgets import Static

from pallas_debug.errors import PallasDebugError
from pallas_debug.tui.model.browser import (
    BEFORE,
    DRAWN,
    Against,
    Browser,
    Entry,
    KernelStep,
    SingleFile,
    TextPlace,
    kernel_name,
)
from pallas_debug.tui.model.document import Document
from pallas_debug.tui.model.origins import module_of
from pallas_debug.tui.model.search import DumpSearch
from pallas_debug.tui.panes.diff import Compared, DiffPane
from pallas_debug.tui.panes.failure import FailurePane, failing_line
from pallas_debug.tui.panes.kernels import KernelPane
from pallas_debug.tui.panes.steps import StepPane
from pallas_debug.tui.panes.text import MAX_LINKED, TextPane
from pallas_debug.tui.shell import Prompt, Shell
from pallas_debug.tui.widgets.find import FindView
from pallas_debug.tui.widgets.frame import Frame, frame_of
from pallas_debug.tui.widgets.lineview import LineView

TWO_COLUMNS = 72
"""Minimum number of columns for the lists beside the text."""

TWO_ROWS = 18
"""Minimum number of rows for one pane above another."""

BANNER_ROWS = 10
"""Minimum number of rows for the reason of a failure above the text."""

FEW_KERNELS = 3
"""Minimum number of rows for kernels above the passes."""


class Workspace(Shell):
    """Main screen: lists on the left, the text on the right; only one pane if there is no room."""

    TITLE = "pallas-debug"

    CSS = """
    Screen { layout: vertical; }
    #panes { height: 1fr; }
    #left { width: 32%; min-width: 32; max-width: 64; }
    #left.alone { width: 1fr; min-width: 0; max-width: 100%; }
    #right { width: 1fr; }
    #failure-frame { height: auto; border: round $text-error; border-title-color: $text-error; }
    #status { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; }
    .hidden { display: none; }
    """

    zoomed: reactive[bool] = reactive(False, init=False)
    diffing: reactive[bool] = reactive(False, init=False)
    sourcing: reactive[bool] = reactive(False, init=False)

    def __init__(self, browser: Browser) -> None:
        super().__init__()
        self.browser = browser
        # Attributes, not queries: a key reads them more than a hundred times.
        self.kernels = KernelPane(browser, id="kernels")
        self.steps = StepPane(id="steps")
        self.failure = FailurePane(id="failure")
        self.text = TextPane(id="text")
        self.diff = DiffPane(id="diff")
        self.source = TextPane(id="source")
        self._shown_place: TextPlace | None = None
        self._sourced: Entry | None = None
        self._listed: tuple[Entry | None, str | None] | None = None
        """Kernel whose steps are listed, and requested target."""
        self._placed: TextPlace | None = None
        """Place shown by the text or diff."""
        self._failing: TextPlace | None = None
        """Place of a failing text that has not been parsed yet."""
        self.wanted_target: str | None = None
        self.against: Against = BEFORE
        self.search = DumpSearch(browser)

    def compose(self) -> ComposeResult:
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield Frame(self.kernels, name="1 Kernels")
                yield Frame(self.steps, name="2 Passes")
            with Vertical(id="right"):
                yield Frame(self.failure, name="Error", id="failure-frame")
                yield Frame(self.text, self.diff.add_class("hidden"), name="3 Text")
                yield Frame(self.source, name="Source").add_class("hidden")
        yield Prompt(id="prompt")
        yield Static(id="status", markup=False)

    @property
    def is_composed(self) -> bool:
        """True if the panes exist; messages may still arrive after the app has removed them."""
        return self.kernels.is_attached

    @property
    def shown(self) -> FindView:
        """Text pane, or the diff pane if it replaces the text."""
        return self.diff if self.base is not None else self.text

    @property
    def is_file(self) -> bool:
        """True if a single file is shown instead of a dump."""
        return isinstance(self.browser, SingleFile)

    # The current place.

    @property
    def entry(self) -> Entry | None:
        """Kernel under the cursor."""
        return self.kernels.current

    @property
    def target(self) -> str | None:
        """Target that is shown."""
        return self.browser.target(self.entry, self.wanted_target) if self.entry else None

    @property
    def place(self) -> TextPlace | None:
        """Text that is shown."""
        if self.entry is None or self.steps.current is None:
            return None
        return TextPlace(entry=self.entry, target=self.target, step=self.steps.current)

    @property
    def base(self) -> TextPlace | None:
        """Text with which the shown text is compared."""
        if not self.diffing or self.place is None:
            return None
        return self.browser.base(self.place, self.against)

    @property
    def compared(self) -> tuple[TextPlace, TextPlace] | None:
        """Old and new text of the diff; None if no diff is shown."""
        base, place = self.base, self.place
        return self.browser.in_order(place, base) if place and base else None

    @property
    def line(self) -> int | None:
        """Line of the text under the cursor, from 0."""
        compared = self.compared
        if compared is None:
            return self.text.cursor
        return self.diff.place[compared.index(self.place)] if self.place else None

    def go_to_kernel(self, entry: Entry) -> None:
        """Show a kernel."""
        self.kernels.select(entry)
        self.show_kernel()

    def go_to_step(self, step: KernelStep) -> None:
        """Show a step of the current kernel."""
        self.steps.select(step.label)
        self.show_step()

    # Contents of the panes.

    @on(LineView.Moved, "#kernels, #steps")
    def show_current(self) -> None:
        """Show the items under the cursors of the lists, unless they are already shown.

        Keys may arrive faster than the screen is drawn; keys for a text must find that text.
        """
        if not self.is_composed:
            return
        if self._listed != (self.entry, self.wanted_target):
            self.show_kernel()
        elif self._placed != self.place:
            self.show_step()

    def before_key(self) -> None:
        if self._listed is not None and self.focused not in (self.kernels, self.steps):
            self.show_current()

    def show_kernel(self) -> None:
        """Show the steps of the current kernel, at the failing pass if it failed."""
        self._listed = self.entry, self.wanted_target
        if self.entry is None:
            self.steps.show([], None)
            self.failure.show(self.browser, None, None)
            self.show_step()
            return
        before = self.steps.current
        steps = self.browser.steps(self.entry, self.wanted_target)
        failing = self.browser.failing(self.entry, self.wanted_target, steps)
        at = before if failing is None else steps[failing]
        self.steps.show(steps, at or _first_shown(steps))
        self.steps.count_changes(self.browser, self.entry, self.wanted_target)
        self.failure.show(self.browser, self.entry, self.wanted_target)
        self.show_step()
        self._failing = self.place if failing is not None else None

    @on(TextPane.TextChanged, "#text")
    def _go_to_failing_line(self) -> None:
        """Go to the line at which the kernel failed, once the text is parsed."""
        place = self._failing
        if not self.is_composed or place is None or place != self.place or not self.text.linked:
            return
        self._failing = None
        failure = self.browser.failure(place.entry, place.target)
        line = failing_line(self.text.module, failure) if failure else None
        if line is not None:
            self.text.cursor = line

    def show_step(self) -> None:
        """Show the text of the current step, or its diff."""
        place = self._placed = self.place
        compared = self.compared
        in_text = self.focused in (self.text, self.diff)
        if place is None:
            self.text.show([self._nothing()] if self.entry is None else [], make=None)
        elif compared is not None:
            old, new = compared
            self.text.show([])
            self.diff.compare(self._to_compare(old, new), self._to_compare(new, old))
        elif self.diffing:
            nothing = (
                f"there is nothing before {place.step.label}"
                if self.against == BEFORE
                else f"there is nothing to compare {place.step.label} with; press D to choose"
            )
            self.text.show([nothing], make=None)
        else:
            keep = self.text.cursor if place == self._shown_place else None
            make = partial(module_of, self.browser, place)
            self.text.show(self._text(place), keep=keep, make=make)
        self._shown_place = place if compared is None else None
        self.arrange()
        if in_text:
            self.focus_on(self.shown)
        self._show_source()
        self.update_status()

    def _to_compare(self, place: TextPlace, other: TextPlace) -> Compared:
        return Compared(
            label=self.browser.label(place, other),
            size=self.browser.size(place),
            read=partial(self.browser.lines, place),
        )

    def _text(self, place: TextPlace) -> Sequence[str]:
        """Return the lines of a text, unless a worker computes them."""
        if place.step.label in DRAWN:
            self._compute(place)
            return ["computing…"]
        if self.browser.size(place) <= MAX_LINKED:
            return self.browser.lines(place)
        try:
            return Document(self.browser.file(place).open())
        except (PallasDebugError, OSError) as error:
            return str(error).split("\n")

    @work(thread=True, exclusive=True, group="stats")
    def _compute(self, place: TextPlace) -> None:
        lines = self.browser.lines(place)
        self.call_from_thread(self._show_computed, place, lines)

    def _show_computed(self, place: TextPlace, lines: Sequence[str]) -> None:
        if self.is_composed and place == self._shown_place:
            self.text.show(lines, keep=self.text.cursor)
            self.update_status()

    def watch_diffing(self) -> None:
        if self.is_composed:
            self.show_step()

    def watch_zoomed(self) -> None:
        self.arrange()

    # The source, and the lines that come from it.

    def watch_sourcing(self) -> None:
        if self.is_composed:
            self._show_source()
            self.arrange()

    def _show_source(self) -> None:
        """Show the kernel's file, with the number of text lines that come from each line."""
        if not self.sourcing or self.entry is None:
            return
        if self._sourced != self.entry:
            self._sourced = self.entry
            line = self.browser.source_line(self.entry) - 1
            file = PurePath(self.browser.source_file(self.entry) or "")
            frame_of(self.source).show_title(file.name)
            self.source.show(self.browser.source_lines(self.entry), keep=line)
            self.source.scroll_to(y=max(line - 1, 0), animate=False, force=True)
        self._follow_text()

    def _follow_text(self) -> None:
        """Move the source's cursor to the line that the text's line comes from."""
        file = self.browser.source_file(self.entry) if self.entry else None
        lines = [s.line for s in self.text.origin if s.file == file]
        keeps = self.text.has_many_origins and self.source.cursor + 1 in lines
        if lines and not keeps:
            self.source.cursor = lines[0] - 1

    @on(LineView.Moved, "#source")
    def _mark_origin(self) -> None:
        """Mark the lines of the text that come from the source's line."""
        if not self.is_composed or not self.sourcing or self.entry is None:
            return
        place = self.browser.source_file(self.entry) or "", self.source.cursor + 1
        at = self.text.origins.get(place, [])
        self.text.mark_origin(at)
        if at and self.focused is self.source:
            self.text.cursor = next((i for i in at if i >= self.text.cursor), at[0])

    # Title and status.

    @on(LineView.Moved, "#text, #diff")
    @on(TextPane.TextChanged, "#text")
    @on(DiffPane.DiffChanged)
    @on(FindView.Found)
    def update_status(self) -> None:
        """Update the title above the panes, and the status below them."""
        if not self.is_composed:
            return
        if self.entry is None:
            self.show_place("3 Text", "", [])
            return
        if self.sourcing and self.focused is not self.source:
            self._follow_text()
        step, shown = self.steps.current, self.shown
        parts = [kernel_name(self.entry.name), self.target or "no target"]
        if len(self.browser.roots) > 1:
            parts.insert(0, str(self.browser.roots[self.entry.dump]))
        parts += [step.label] if step else []
        parts += [self._compared()] * self.diffing
        self.show_place(
            "3 Diff" if shown is self.diff else "3 Text",
            str(self.browser.roots[0]) if self.is_file else " › ".join(parts),
            [
                shown.where,
                shown.problem,
                self.diff.state if shown is self.diff else self.text.origin_text,
                "" if shown is self.diff else self.text.state,
                f"{shown.cursor + 1:,} of {shown.count:,}",
            ],
        )

    def show_place(self, label: str, title: str, notes: Iterable[str]) -> None:
        """Show what the text is, and what is known at its cursor, in the frame around it."""
        frame = frame_of(self.text)
        frame.show_title(title, label)
        frame.show_note("  ".join(filter(None, notes)))

    def _nothing(self) -> str:
        """Reason why no kernel is listed."""
        if self.browser.entries:
            return "no kernel matches the filter; press f to change it"
        roots = " and ".join(map(str, self.browser.roots))
        return f"no kernels in {roots}; `pallas-debug dump` creates some"

    def _compared(self) -> str:
        base, place = self.base, self.place
        if self.against == BEFORE or base is None or place is None:
            return "what it changed"
        return f"against {self.browser.label(base, place)}"

    # Layout and focus.

    def on_resize(self) -> None:
        self.arrange()
        self.show_keys()

    def on_descendant_focus(self) -> None:
        self.arrange()
        self.show_keys()

    def arrange(self) -> None:
        """Show all panes, those next to the focused one, or only the focused one."""
        if not self.is_composed:
            return
        order = self.focus_order
        focused = next((pane for pane in order if pane is self.focused), None)
        focused = focused or self.shown
        is_list = focused in (self.kernels, self.steps)
        is_one = self.zoomed or self.size.width < TWO_COLUMNS
        rows = self.size.height
        for pane in (self.kernels, self.steps, self.failure, self.text, self.source):
            if pane is focused or (pane is self.text and focused is self.diff):
                is_shown = True
            elif self.zoomed or (pane not in order and pane is not self.text):
                is_shown = False
            elif pane in (self.kernels, self.steps):
                is_shown = not is_one and (rows >= TWO_ROWS or (pane is self.steps and not is_list))
            else:
                is_shown = rows >= (BANNER_ROWS if self.failure in (pane, focused) else TWO_ROWS)
                is_shown = is_shown or (pane is self.text and is_list)
            frame_of(pane).set_class(not is_shown, "hidden")
        self.query_one("#left").set_class(is_one and not is_list, "hidden")
        self.query_one("#left").set_class(is_one, "alone")
        self.query_one("#right").set_class(is_one and is_list, "hidden")
        self.text.set_class(self.shown is not self.text, "hidden")
        self.diff.set_class(self.shown is not self.diff, "hidden")
        kernels = min(max(self.kernels.count, FEW_KERNELS), rows // 3) + 2
        is_alone = frame_of(self.steps).has_class("hidden")
        frame_of(self.kernels).styles.height = "1fr" if is_alone else kernels

    @property
    def focus_order(self) -> list[LineView]:
        """Panes in the order in which they get the focus."""
        panes: list[LineView] = [self.kernels, self.steps]
        panes += [self.failure] if self.failure.report else []
        panes += [self.shown]
        return [*panes, self.source] if self.sourcing else panes

    def focus_pane(self, direction: int) -> None:
        """Focus the next or previous pane. Focusing a hidden pane shows it."""
        panes = self.focus_order
        at = next((i for i, pane in enumerate(panes) if pane is self.focused), 0)
        self.focus_on(panes[(at + direction) % len(panes)])

    def focus_on(self, wanted: LineView) -> None:
        """Focus a pane and show it."""
        for pane in wanted.ancestors_with_self:
            pane.remove_class("hidden")
        self.screen.set_focus(wanted)  # immediately, as the next key is for this pane

    def after_prompt(self) -> None:
        self.focus_on(self.shown)


def _first_shown(steps: list[KernelStep]) -> KernelStep | None:
    """Return the kernel's module before any pass, or else the first available text."""
    return next((s for s in steps if s.stage == "mosaic"), steps[0] if steps else None)
