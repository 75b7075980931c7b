"""Actions that search and compare texts, change how they are shown, and show values beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on, work
from textual.worker import get_current_worker

from pallas_debug.errors import DumpFormatError
from pallas_debug.ir.operations import Module
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import BEFORE, Against, TextPlace
from pallas_debug.tui.model.search import Job, Scope, TextHit, query_of, step_of
from pallas_debug.tui.panes.text import MAX_LINKED, TextPane
from pallas_debug.tui.workspace import Workspace

if TYPE_CHECKING:
    from pallas_debug.stepping.computed import LineValues


class ViewingActions(Workspace):
    """Mixin with actions that search and view texts."""

    @action("search.text", "slash", "search the text", priority=True)
    def action_search_text(self) -> None:
        def typed(value: str) -> None:
            self.shown.search(value)
            self.update_status()

        self.ask("regular expression", typed=typed)

    @action("search.only", "ampersand", "only matching lines, with context")
    def action_search_only(self) -> None:
        if self.shown is not self.text:
            self.show_message("a diff only shows changes")
            return

        def typed(value: str) -> None:
            self.text.search(value)
            self.text.narrow(bool(value))
            self.update_status()

        self.ask("only lines that match: regular expression", typed=typed)

    @action("search.previous", "N", "previous hit", arguments="-1")
    @action("search.next", "n", "next hit", arguments="1")
    def action_move_hit(self, direction: int) -> None:
        """Go to the next or previous hit in the text, or else in the search over many texts."""
        if self.shown.where or not self.search.active:
            self.shown.next_hit(direction)
            self.update_status()
            return
        self._list_more()
        if found := self.search.next(direction):
            self._open_hit(found)
        elif self.search.hits:
            self.show_message("the next hits are being listed; press the key again")

    @action("search.all", "ctrl+g", "search all kernels", arguments="'all'")
    @action("search.kernel", "ctrl+f", "search all passes of the kernel", arguments="'kernel'")
    def action_search_dumps(self, scope: Scope) -> None:
        from pallas_debug.tui.panes.results import SearchScreen  # slows the start

        entry = self.entry
        if entry is None:
            return
        if self.search.scope != scope or (scope == "kernel" and self.search.entry != entry):
            self.search.clear()
        self.search.scope = scope

        def begin(text: str) -> None:
            self._run_search(self.search.begin(text, scope, entry))

        where = entry.name if scope == "kernel" else f"{len(self.browser.entries):,} kernels"
        screen = SearchScreen(
            self.search,
            f"search in {where}",
            begin=begin,
            more=self._list_more,
            opened=self._open_hit,
        )
        self.push_screen(screen)

    @work(thread=True, exclusive=True, group="search")
    def _run_search(self, job: Job) -> None:
        worker = get_current_worker()
        job(lambda: worker.is_cancelled)

    @work(thread=True, exclusive=True, group="list")
    def _run_listing(self, job: Job) -> None:
        worker = get_current_worker()
        job(lambda: worker.is_cancelled)

    def _list_more(self) -> None:
        """List more hits, if the current hit is near the last listed one."""
        if job := self.search.near_end():
            self._run_listing(job)

    def _open_hit(self, found: TextHit) -> None:
        """Show a hit of a search over many texts."""
        target, step = step_of(self.browser, found)
        if step is None or not self.kernels.select(found.entry):
            self.show_message(f"{found.path} no longer exists")
            return
        self.diffing = False
        self.wanted_target = target or self.wanted_target
        self.show_kernel()
        self.steps.select(step.label)
        self.show_step()
        self.text.go_to(found.line)
        self.text.mark(query_of(self.search.text))
        self.focus_on(self.text)
        self.update_status()

    # The text.

    @action("text.locations", "L", "fold locations")
    def action_fold_locations(self) -> None:
        self.text.folded = not self.text.folded

    @action("text.wrap", "w", "wrap long lines")
    def action_wrap(self) -> None:
        for pane in (self.text, self.diff):
            pane.wrap = not pane.wrap

    @action("text.fold", "minus", "fold or unfold the region around the line")
    def action_fold_region(self) -> None:
        self.text.toggle_fold()

    @action("text.fold_all", "underscore", "fold all regions")
    def action_fold_all(self) -> None:
        self.text.fold_all()

    @action("text.unfold_all", "plus", "unfold all regions")
    def action_unfold_all(self) -> None:
        self.text.unfold_all()

    @action("text.trail", "u", "history of the operation, pass by pass")
    def action_follow_operation(self) -> None:
        place, line = self.place, self.line
        if place is None or line is None:
            self.show_message("this line is only in the other text" if place else "")
            return
        steps = [s for s in self.steps.all_steps if s.changed and (s.pass_ or s == place.step)]
        if place.step not in steps or not place.step.pass_:
            self.show_message("operations are followed through passes; this is not a pass")
            return
        browser = self.browser
        texts = [TextPlace(entry=place.entry, target=place.target, step=step) for step in steps]
        at = steps.index(place.step)
        sizes = [browser.size(text) for text in texts]
        large = [i for i, size in enumerate(sizes) if size > MAX_LINKED]
        for i in large:
            self.show_message(
                f"{steps[i].label} has {sizes[i] / 1e6:,.0f} MB; operations are followed through "
                f"texts of up to {MAX_LINKED / 1e6:,.0f} MB"
            )
        if at in large:
            return
        first = max((i + 1 for i in large if i < at), default=0)
        end = min((i for i in large if i > at), default=len(steps))
        steps, texts = steps[first:end], texts[first:end]
        self.trail_steps = steps
        self.trailing = True
        self.trail.follow(
            lambda: [Module(browser.lines(text)) for text in texts],
            [step.label for step in steps],
            steps.index(place.step),
            line,
        )
        self.arrange()
        self.focus_on(self.trail)

    @action("search.regex", "ctrl+r", "regular expression, or literal text")
    def action_toggle_regex(self) -> None:
        self.shown.toggle_regex()
        self.show_message("regular expression" if self.shown.regex else "literal text")

    @action("search.case", "ctrl+t", "smart case, ignore case, or match case")
    def action_next_case(self) -> None:
        self.shown.next_case()
        messages = {
            "smart": "smart case: capitals match exactly",
            "ignored": "case is ignored",
            "kept": "case must match",
        }
        self.show_message(messages[self.shown.case])

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

        self.choose("compare with", self._comparable(), chosen)

    def _comparable(self) -> list[tuple[str, Against]]:
        """Return the texts with which the text can be compared, the most similar first."""
        place = self.place
        if place is None:
            return []
        browser = self.browser
        choices = [("the text before", BEFORE)]
        if len(browser.roots) > 1 and browser.counterpart(place.entry) is not None:
            other = browser.roots[1 - place.entry.dump]
            choices.append((f"the same kernel in {other}", Against(other_dump=True)))
        for compilation in browser.stored(place.entry).compilations:
            if compilation.target != place.target:
                target = compilation.target
                choices.append((f"the same pass for {target}", Against(target=target)))
        for step in self.steps.all_steps:
            if step.changed and step != place.step:
                choices.append((step.label, Against(step=step.label)))
        for entry in browser.entries:
            if entry != place.entry:
                root = f" in {browser.roots[entry.dump]}" if len(browser.roots) > 1 else ""
                choices.append((f"the same pass of {entry.name}{root}", Against(entry=entry)))
        return choices

    @action("diff.noise", "i", "count noise as change: value numbers, locations, attribute order")
    def action_toggle_noise(self) -> None:
        self.noise = not self.noise

    @action("diff.split", "s", "side by side, or unified")
    def action_toggle_split(self) -> None:
        self.diff.split = not self.diff.is_split

    @action("diff.whole", "W", "all lines, or only changes with context")
    def action_toggle_whole(self) -> None:
        self.diff.whole = not self.diff.whole

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

    # Recorded values.

    @action("values.show", "V", "recorded values beside the lines")
    def action_show_values(self) -> None:
        if self._can_show_values() and self.recorded is not None:
            self.point = None if self.point is not None else self.recorded.points[0]
            self._show_point()

    @action("values.previous", "P", "values at the previous grid point", arguments="-1")
    @action("values.next", "p", "values at the next grid point", arguments="1")
    def action_move_point(self, direction: int) -> None:
        if not self._can_show_values() or self.recorded is None:
            return
        points = self.recorded.points
        at = points.index(self.point) + direction if self.point is not None else 0
        if not 0 <= at < len(points):
            self.show_message(f"{self.point} is the {'first' if direction < 0 else 'last'} one")
            return
        self.point = points[at]
        self._show_point()

    @action("values.point", "", "values at a grid point, from a list")
    def action_choose_point(self) -> None:
        def chosen(point: tuple[int, ...] | None) -> None:
            if point is not None:
                self.point = point
                self._show_point()

        if self._can_show_values() and self.recorded is not None:
            points = self.recorded.points
            at = points.index(self.point) if self.point is not None else 0
            self.choose("values at grid point", [(str(p), p) for p in points], chosen, at=at)

    def _show_point(self) -> None:
        self.show_values()
        self.update_status()

    def _can_show_values(self) -> bool:
        """Return whether there are values to show; if not, show a message with the reason."""
        if self.recorded is None:
            self.show_message(
                "no recording: `pallas-debug step WHAT --record FOLDER` makes one, "
                "`browse --values FOLDER` shows it"
            )
        elif not self.has_values:
            self.show_message(f"the recording is of {self.recorded.kernel}, not of this kernel")
        return self.has_values

    @on(TextPane.TextChanged)
    def show_values(self) -> None:
        """Show the values that each line computed at the grid point, beside the line."""
        if not self.is_composed:
            return
        texts: dict[int, str] = {}
        shown = self.place
        if self.has_values and self.recorded and self.point is not None and shown is not None:
            for line, found in self.recorded.at(self.point).items():
                lines = self.lines_from(line, shown)
                text = self._recorded_text(found) if lines else ""
                if text:
                    at = max(lines)
                    texts[at] = f"{texts[at]}; {text}" if at in texts else text
        self.text.put_beside(texts)

    def _recorded_text(self, found: LineValues) -> str:
        assert self.recorded is not None
        try:
            return self.recorded.text(found)
        except DumpFormatError as error:
            return str(error)
