"""Costs beside source lines, and findings, hints and compiler errors below them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Literal, get_args

from textual import on, work
from textual.cache import LRUCache
from textual.reactive import reactive

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.operations import Module
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import STATS, Entry, KernelStep, TextPlace
from pallas_debug.tui.panes.kernels import KernelPane
from pallas_debug.tui.panes.text import Heat, Note, TextPane
from pallas_debug.tui.workspace import Workspace

Gutter = Literal["cycles", "operations", "growth"]
"""What the costs beside source lines count."""

_CostsKey = tuple[Entry, str | None, KernelStep | None, Gutter]

BAD, HELP = "bold text-error", "text-success"

_CACHED = 32
"""Maximum number of texts and schedules whose costs are cached."""


class MarkingActions(Workspace):
    """Mixin with actions on costs and notes of source lines."""

    gutter: reactive[Gutter] = reactive("cycles", init=False)

    def show_step(self) -> None:
        super().show_step()
        self._mark()

    def watch_sourcing(self) -> None:
        super().watch_sourcing()
        self._mark()

    def watch_gutter(self) -> None:
        self._mark()
        self.show_message(f"beside source lines: {self.gutter}")

    @on(KernelPane.RunsRead)
    def _show_notes(self) -> None:
        """Show notes below lines of the source and of the module before any pass."""
        place = self.place
        if not self.is_composed or place is None:
            return
        notes = self._notes(place)
        self.source.show_notes(notes)
        if place.step.stage == "source":
            self.text.show_notes(notes)
        elif place.step.stage == "mosaic" and notes:
            file, origins = self.browser.source_file(place.entry) or "", self.text.origins
            made = {
                origins[file, n + 1][0]: note
                for n, note in notes.items()
                if (file, n + 1) in origins
            }
            self.text.show_notes(made)

    def _notes(self, place: TextPlace) -> Mapping[int, Note]:
        """Return the notes on lines of the kernel's own file, by line from 0."""
        found: dict[int, list[tuple[str, str]]] = {}
        file = self.browser.source_file(place.entry)
        failure = self.browser.failure(place.entry, place.target)
        report = self.failure.report
        if report is not None and failure and failure.source and failure.source.file == file:
            lines = [(report.headline, BAD), *((line, HELP) for line in report.explanation)]
            found.setdefault(failure.source.line - 1, []).extend(lines)
        for event in self.kernels.runs.notes(place.entry):
            if event.source is not None and event.source.file == file:
                head, *rest = event.lines
                style = BAD if event.kind == "finding" else "text-warning"
                note = found.setdefault(event.source.line - 1, [])
                note += [(head, style), *((line, "") for line in rest)]
        return found

    @action("runs.next", "exclamation_mark", "next finding, hint or compiler error in its text")
    def action_next_note(self) -> None:
        self._go_to_source_stage()
        if not self.text.next_note():
            self.show_message("nothing was found in this kernel; R lists all findings")
        self.focus_on(self.text)

    def _go_to_source_stage(self) -> None:
        self.diffing = False
        step = next((s for s in self.steps.steps if s.stage == "source"), None)
        if step is not None and step != self.steps.current:
            self.go_to_step(step)

    # Costs.

    @action("source.gutter", "c", "beside source lines: cycles, operations or growth")
    def action_change_gutter(self) -> None:
        kinds = get_args(Gutter)
        self.gutter = kinds[(kinds.index(self.gutter) + 1) % len(kinds)]

    @action("source.hottest", "H", "source line with the next highest cost")
    def action_next_hot(self) -> None:
        pane = self.source if self.sourcing else self.text
        if pane is self.text:
            self._go_to_source_stage()
        if not pane.next_hot():
            self.show_message("the costs are not known")
        self.focus_on(pane)

    @on(TextPane.TextChanged, "#text")
    def _mark(self) -> None:
        """Show notes and costs, once the text is parsed."""
        place = self.place
        if not self.is_composed or place is None or self.base is not None:
            return
        self._show_notes()
        if place.step.stage != "source" and not self.sourcing:
            return
        known = self._known_costs.get(self._key(place))
        if known is None:
            self._count_costs(place, self.steps.steps, self.gutter)
        else:
            self._show_costs(known)

    @cached_property
    def _known_costs(self) -> LRUCache[_CostsKey, dict[int, Heat]]:
        return LRUCache(_CACHED)

    def _key(self, place: TextPlace) -> _CostsKey:
        """Return what the costs depend on: the schedule, or else the text."""
        has_schedule = any(step.label == STATS for step in self.steps.steps)
        is_same = has_schedule and self.gutter == "cycles"
        return place.entry, place.target, None if is_same else place.step, self.gutter

    def _show_costs(self, costs: dict[int, Heat]) -> None:
        self.source.show_heat(costs)
        if self.place is not None and self.place.step.stage == "source":
            self.text.show_heat(costs)

    @work(thread=True, exclusive=True, group="costs")
    def _count_costs(self, place: TextPlace, steps: list[KernelStep], gutter: Gutter) -> None:
        costs = self._cycles(place) if gutter == "cycles" else {}
        if not costs:
            costs = self._operations(place, steps, is_growth=gutter == "growth")
        self.call_from_thread(self._take_costs, place, gutter, costs)

    def _take_costs(self, place: TextPlace, gutter: Gutter, costs: dict[int, Heat]) -> None:
        if not self.is_composed or (place, gutter) != (self.place, self.gutter):
            return
        self._known_costs[self._key(place)] = costs
        self._show_costs(costs)

    def _cycles(self, place: TextPlace) -> dict[int, Heat]:
        """Return the share of each source line in the cycles; empty without a schedule."""
        from pallas_debug.profile.lines import of_file  # both are slow to import
        from pallas_debug.store.profiles import read_profile

        compilation = self.browser.compilation(place.entry, place.target)
        try:
            found = (
                read_profile(self.browser.stored(place.entry), compilation) if compilation else None
            )
        except PallasDebugError:
            found = None
        lines = found.profile.lines if found is not None else ()
        costs = of_file(lines, self.browser.source_file(place.entry) or "")
        largest = max((cost.share for cost in costs.values()), default=0.0)
        return {
            line - 1: Heat(f"{cost.share:.0%}", cost.share / largest)
            for line, cost in costs.items()
            if cost.share >= 0.005
        }

    def _operations(
        self, place: TextPlace, steps: list[KernelStep], *, is_growth: bool
    ) -> dict[int, Heat]:
        """Return the number of operations from each source line, or its growth.

        The source itself stands for the last pass, which has grown from the first text.
        """
        browser = self.browser
        if place.step.stage == "source":
            made = [s for s in steps if (s.pass_ or s.stage == "mosaic") and s.changed]
            place, before = (
                (replace(place, step=s) for s in (made[-1], made[0])) if made else (place, None)
            )
        else:
            before = browser.before(place)
        file = browser.source_file(place.entry)
        counts: Counter[int] = Counter()
        for text, sign in ((place, 1), (before if is_growth else None, -1)):
            if text is not None:
                module = Module(browser.lines(text))
                for (name, line), at in module.from_source.items():
                    counts[line - 1] += sign * len(at) * (name == file)
        largest = max(map(abs, counts.values()), default=0)
        style = "+,d" if is_growth else ",d"
        return {line: Heat(format(n, style), n / largest) for line, n in counts.items() if n}
