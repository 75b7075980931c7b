"""Actions that search and compare texts, and change how they are shown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from textual import work
from textual.worker import get_current_worker

from pallas_debug.ir.operations import NOISE, Module
from pallas_debug.render import plural
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import BEFORE, Against, KernelStep, TextPlace, kernel_name
from pallas_debug.tui.model.origins import MAX_FOLLOWED, followed, is_followed
from pallas_debug.tui.model.search import Job, TextHit, step_of
from pallas_debug.tui.model.trail import FATES, Loader, TrailRow, trail_rows
from pallas_debug.tui.widgets.cells import plain, spans, without_locations
from pallas_debug.tui.widgets.choices import Choice
from pallas_debug.tui.workspace import Workspace


class ViewingActions(Workspace):
    """Mixin with actions that search and view texts."""

    @action("search.text", "slash", "search the text", priority=True)
    def action_search_text(self) -> None:
        def typed(value: str) -> None:
            self.shown.search(value)
            self.update_status()

        self.prompt.ask("regular expression", typed=typed)

    @action("search.previous", "N", "previous hit", arguments="-1")
    @action("search.next", "n", "next hit", arguments="1")
    def action_move_hit(self, direction: int) -> None:
        self.shown.next_hit(direction)
        self.update_status()

    @action("search.all", "ctrl+g", "search all passes of all kernels")
    def action_search_dumps(self) -> None:
        from pallas_debug.tui.panes.searching import SearchScreen  # slows the start

        entry = self.entry
        if entry is None:
            return

        def begin(text: str) -> None:
            self._run_search(self.search.begin(text, entry))

        title = f"search in {plural(len(self.browser.entries), 'kernel')}"
        self.push_screen(SearchScreen(self.search, title, begin=begin, opened=self._open_hit))

    @work(thread=True, exclusive=True, group="search")
    def _run_search(self, job: Job) -> None:
        worker = get_current_worker()
        job(lambda: worker.is_cancelled)

    def _open_hit(self, found: TextHit) -> None:
        """Show a hit of a search over many texts."""
        target, step = step_of(self.browser, found)
        if step is None:
            self.show_message(f"{found.path} no longer exists")
            return
        self.diffing = False
        self.wanted_target = target or self.wanted_target
        self.go_to_kernel(found.entry)
        self.go_to_step(step)
        self.text.search(self.search.text)
        self.text.cursor = found.line
        self.focus_on(self.text)
        self.update_status()

    # The text.

    @action("text.locations", "L", "show or hide locations")
    def action_toggle_locations(self) -> None:
        self.text.locations = not self.text.locations

    @action("text.trail", "u", "history of the operation, from the Python line to the bundles")
    def action_follow_operation(self) -> None:
        place, line = self.place, self.line
        if self.focused is self.source and self.entry is not None:
            steps = [step for step in self.steps.steps if step.stage == "source"]
            line = self.source.cursor
        else:
            steps = [self.steps.current] if self.steps.current is not None else []
        if place is None or line is None or not steps:
            self.show_message("this line is only in the other text" if place else "")
            return
        if not is_followed(steps[0]):
            self.show_message(
                "operations are followed through forms of the kernel; this is not one"
            )
            return
        if (size := self.browser.size(replace(place, step=steps[0]))) > MAX_FOLLOWED:
            self.show_message(
                f"{steps[0].label} has {size / 1e6:,.0f} MB; operations are followed through texts "
                f"of up to {MAX_FOLLOWED / 1e6:,.0f} MB"
            )
            return
        load = partial(followed, self.browser, place, list(self.steps.steps))
        self.show_message(f"following line {line + 1} of {steps[0].label}…")
        self._follow(load, steps[0].label, line)

    @work(thread=True, exclusive=True, group="trail")
    def _follow(self, load: Loader, label: str, line: int) -> None:
        rows = trail_rows(load, label, line)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._show_trail, rows)

    def _show_trail(self, rows: list[TrailRow]) -> None:
        def chosen(row: TrailRow | None) -> None:
            step = next((s for s in self.steps.steps if row and s.label == row.label), None)
            if row is not None and row.line is not None and step is not None:
                self.diffing = False
                self.go_to_step(step)
                self.text.cursor = row.line
                self.focus_on(self.text)

        self.show_message("" if rows else "the line is no longer in the text, which was replaced")
        if rows:
            widest = max(len(row.label) for row in rows)
            choices = [Choice(f"{row.label:<{widest}}  {_shown(row)}", row) for row in rows]
            at = next((n for n, row in enumerate(rows) if row.here), 0)
            self.choose("History of the operation", choices, chosen, at=at)

    @action("text.use", "x", "next use of the line's value")
    def action_next_use(self) -> None:
        if not self.text.next_use():
            self.show_message("nothing in this text uses the value of the line")

    @action("text.definition", "X", "definition of the line's first operand")
    def action_to_definition(self) -> None:
        if not self.text.to_definition():
            self.show_message("no operand of the line is defined in this text")

    # Diffs.

    @action("diff.show", "d", "what the pass changed")
    def action_show_diff(self) -> None:
        self.diffing = not self.diffing

    @action("diff.against", "D", "compare with another pass, target, kernel or dump")
    def action_compare_with(self) -> None:
        def chosen(wanted: Against | None) -> None:
            if wanted is not None:
                self.against = wanted
                self.diffing = True
                self.show_step()
                if wanted.step is None and self.place is not None:
                    self._find_difference(self.place, list(self.steps.steps))

        self.choose("compare with", self._comparable(), chosen)

    def _comparable(self) -> list[tuple[str, Against]]:
        """Return the texts with which the text can be compared, the most similar first."""
        place, browser = self.place, self.browser
        if place is None:
            return []
        choices: list[tuple[str, Against]] = []
        if len(browser.roots) > 1:
            other = browser.roots[1 - place.entry.dump]
            choices.append((f"the same kernel in {other}", Against(other_dump=True)))
        for compilation in browser.stored(place.entry).compilations:
            target = compilation.target
            if target != place.target:
                choices.append((f"the same text for {target}", Against(target=target)))
        for step in self.steps.steps:
            if step.changed and step != place.step and step.of_kernel and place.step.of_kernel:
                choices.append((step.label, Against(step=step.label)))
        choices = [choice for choice in choices if browser.base(place, choice[1]) is not None]
        if self.against != BEFORE:
            choices.append(("the text before", BEFORE))
        name = kernel_name(place.entry.name)
        for entry in sorted(browser.entries, key=lambda e: kernel_name(e.name) != name):
            if entry != place.entry:
                root = f" in {browser.roots[entry.dump]}" if len(browser.roots) > 1 else ""
                choices.append((f"the same text of {entry.name}{root}", Against(entry=entry)))
        return choices

    @work(thread=True, exclusive=True, group="difference")
    def _find_difference(self, place: TextPlace, steps: list[KernelStep]) -> None:
        """Go to the first text with other operations, if the shown one is the same."""
        from pallas_debug.ir.diff import diff  # slows the start

        browser, against = self.browser, self.against
        for step in steps[steps.index(place.step) :]:
            at = replace(place, step=step)
            base = browser.base(at, against) if step.of_kernel and step.changed else None
            if base is None or max(browser.size(at), browser.size(base)) > MAX_FOLLOWED:
                continue
            if get_current_worker().is_cancelled:
                return
            old, new = browser.lines(at), browser.lines(base)
            if step == place.step and diff(old, new, ignore=NOISE).changed:
                return
            if Module(old).counts != Module(new).counts:
                self.call_from_thread(self._show_difference, place, against, step)
                return

    def _show_difference(self, place: TextPlace, against: Against, step: KernelStep) -> None:
        is_shown = self.is_composed and (self.place, self.against) == (place, against)
        if is_shown and self.diffing and step != place.step:
            self.go_to_step(step)
            self.show_message(f"{step.label} is the first text with other operations")

    @action("diff.previous", "less_than_sign", "previous change", arguments="-1")
    @action("diff.next", "greater_than_sign", "next change", arguments="1")
    def action_move_change(self, direction: int) -> None:
        self.diff.next_hunk(direction)

    # The source.

    @action("source.show", "o", "Python source below the text, linked both ways")
    def action_show_source(self) -> None:
        if self.focused is self.source:
            self.focus_pane(-1)
        self.sourcing = not self.sourcing


def _shown(row: TrailRow) -> str:
    """Return what became of an operation, its line and its text."""
    number = "" if row.line is None else f"{row.line + 1}"
    text = plain(without_locations(spans(row.text.strip())))
    return f"{FATES[row.fate]:<10}{number:>6}  {text}"
