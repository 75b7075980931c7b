"""Modal lists that link to places: hits of a search; findings, hints, gaps and prints of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.timer import Timer
from textual.widgets import Input

from pallas_debug.tui.model import MAX_LISTED
from pallas_debug.tui.model.browser import kernel_name
from pallas_debug.tui.model.runs import RunEvent, Runs
from pallas_debug.tui.model.search import DumpSearch, TextHit
from pallas_debug.tui.panes.dialogs import ListScreen
from pallas_debug.tui.widgets.cells import Cells, fitted, visible

_MARKS = {"finding": ("⚑ ", "results--bad"), "hint": ("? ", "results--place")}
"""Mark and style of a finding and a hint."""

TICK = 0.1
"""Seconds between updates of the list."""

DEBOUNCE = 0.15
"""Seconds without typing before a search starts."""


class SearchScreen(ListScreen[None]):
    """Screen for a search over many texts, run while the user types.

    Args:
      begin: starts a search.
      opened: goes to a hit.
    """

    def __init__(
        self,
        search: DumpSearch,
        title: str,
        *,
        begin: Callable[[str], None],
        opened: Callable[[TextHit], None],
    ) -> None:
        super().__init__(title, hint="regular expression", value=search.text)
        self._search = search
        self._begin = begin
        self._opened = opened
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        self.listed.grow(len(self._search.hits), keep=max(self._search.at, 0))
        self.set_interval(TICK, self.tick)
        self.tick()

    @on(Input.Changed)
    def _debounce(self, event: Input.Changed) -> None:
        text = event.value
        if text == self._search.text:
            return
        self._search.clear()
        self.tick()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(DEBOUNCE, lambda: self._start(text))

    def _start(self, text: str) -> None:
        self._begin(text)
        self.tick()

    def action_stop(self) -> None:
        if not self._search.stop():
            self.dismiss()
        self.tick()

    def tick(self) -> None:
        search = self._search
        if len(search.hits) != self.listed.count:
            self.listed.grow(len(search.hits))
        search.at = self.listed.cursor if search.hits else -1
        self.show_summary(search.status or "type to search; enter opens a hit, then n and N")

    def draw(self, line: int, width: int) -> Cells:
        found = self._search.hits[line]
        room = min(max(width // 2, 12), 60)
        kernel = f"{found.entry.name} " if self._search.scope == "all" else ""
        place = f"{kernel}{found.target or ''} {found.stage}".strip()
        before, match, after = found.parts
        return [
            (fitted(visible(place), room - 7), "results--place"),
            (f"{found.line + 1:>6} ", "results--place"),
            (before.lstrip()[-room:], ""),
            (match, "results--hit"),
            (after, ""),
        ]

    def open(self, line: int) -> None:
        self._search.at = line
        self.dismiss()
        self._opened(self._search.hits[line])


class RunsScreen(ListScreen[None]):
    """Screen with findings and prints of runs; typing filters them.

    Args:
      opened: goes to the kernel and line of an event.
    """

    def __init__(self, runs: Runs, *, opened: Callable[[RunEvent], None]) -> None:
        super().__init__("findings, gaps and prints", hint="filter: test, kernel, line or words")
        self._runs = runs
        self._opened = opened
        self._text = ""
        self._shown: Sequence[RunEvent] = ()
        self._seen = (-1, "")

    def on_mount(self) -> None:
        self.set_interval(TICK, self.tick)
        self.tick()

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._text = event.value
        self.tick()

    def tick(self) -> None:
        runs = self._runs
        seen = len(runs.results), self._text
        if seen != self._seen:
            keep = None if seen[1] == self._seen[1] else 0
            self._seen = seen
            self._shown = list(runs.matching(self._text))
            self.listed.grow(len(self._shown), keep=keep)
        shown = f"{len(self._shown):,}/" if self._text.strip() else ""
        first = f", the first {MAX_LISTED:,} listed" if runs.count > MAX_LISTED else ""
        state = "" if runs.whole else ", reading"
        hint = "; run pytest with --pallas-interpret or --pallas-check to get some"
        hint = hint if runs.whole and not runs.count else ""
        of = f"findings, hints, gaps and prints of {runs.records:,} tests and scripts"
        self.show_summary(f"{shown}{runs.count:,} {of}{first}{state}{hint}")

    def draw(self, line: int, width: int) -> Cells:
        event = self._shown[line]
        name = event.test.rpartition("::")[2]
        room = max(width // 6, 8)
        mark, style = _MARKS.get(event.kind, ("  ", ""))
        return [
            (mark, style),
            (f"{fitted(visible(name), room)} ", "results--place"),
            (f"{fitted(visible(kernel_name(event.kernel)), room)} ", ""),
            (f"{fitted(visible(event.line), min(room, 16))} ", "results--place"),
            (event.text, style),
            (f" {event.place}" if event.place else "", "results--place"),
        ]

    def open(self, line: int) -> None:
        self.dismiss()
        self._opened(self._shown[line])
