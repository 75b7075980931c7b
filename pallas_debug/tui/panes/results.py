"""Modal lists that link to places: hits of a search; findings, hints, gaps and prints of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input, Static

from pallas_debug.tui.model import MAX_LISTED
from pallas_debug.tui.model.browser import kernel_name
from pallas_debug.tui.model.runs import RunEvent, Runs
from pallas_debug.tui.model.search import DumpSearch, TextHit
from pallas_debug.tui.widgets.cells import Cells, fitted, visible
from pallas_debug.tui.widgets.lineview import LineView

_MARKS = {"finding": ("⚑ ", "results--bad"), "hint": ("? ", "results--place")}
"""Mark and style of a finding and a hint."""

TICK = 0.1
"""Seconds between updates of the list."""

DEBOUNCE = 0.15
"""Seconds without typing before a search starts."""


class ResultList(LineView, can_focus=False):
    """List of a `ResultScreen`, which handles the keys that move the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"results--hit", "results--place", "results--bad"}
    DEFAULT_CSS = """
    ResultList {
        & .results--hit { background: $warning; color: $background; text-style: bold; }
        & .results--place { text-style: dim; }
        & .results--bad { color: $text-error; text-style: bold; }
        &:nocolor .results--hit { text-style: bold reverse; }
    }
    """

    class ResultClicked(Message):
        """Message: a line was double-clicked."""

    def __init__(self, draw: Callable[[int, int], Cells]) -> None:
        super().__init__()
        self._draw = draw
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def grow(self, count: int, *, keep: int | None = None) -> None:
        """Set the number of lines."""
        self._count = count
        self.changed(keep=keep)

    def cells(self, line: int) -> Cells:
        mark = "›" if line == self.cursor else " "
        return [(f"{mark} ", ""), *self._draw(line, max(self.columns - 2, 1))]

    def on_click(self, event: events.Click) -> None:
        super().on_click(event)
        if event.chain == 2:
            self.post_message(self.ResultClicked())


class ResultScreen(ModalScreen[None]):
    """Modal screen with an input, a list below it, and a status line.

    Args:
      hint: placeholder of the input.
      value: initial text of the input.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop, then close", show=False),
        Binding("down,ctrl+n", "move(1)", "down", show=False),
        Binding("up,ctrl+p", "move(-1)", "up", show=False),
        Binding("pagedown", "page(1)", "next page", show=False),
        Binding("pageup", "page(-1)", "previous page", show=False),
    ]

    CSS = """
    ResultScreen { align: center middle; }
    #results { width: 100%; height: 100%; background: $surface; }
    #results Static { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; }
    #results Input { height: 1; border: none; padding: 0 1; }
    #results ResultList { height: 1fr; }
    """

    def __init__(self, title: str, *, hint: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(id="results"):
            yield Static(visible(self._title), markup=False)
            yield Input(self._value, placeholder=self._hint, compact=True, select_on_focus=False)
            yield ResultList(self.draw)
            yield Static(id="summary", markup=False)

    def on_mount(self) -> None:
        self.set_interval(TICK, self.tick)
        self.tick()

    @property
    def listed(self) -> ResultList:
        return self.query_one(ResultList)

    def show_summary(self, text: str) -> None:
        self.query_one("#summary", Static).update(visible(text), layout=False)

    def action_move(self, lines: int) -> None:
        self.listed.action_move(lines)

    def action_page(self, pages: float) -> None:
        self.listed.action_page(pages)

    def action_stop(self) -> None:
        """Close the screen; subclasses first stop running work."""
        self.dismiss()

    @on(Input.Submitted)
    @on(ResultList.ResultClicked)
    def _open_current(self) -> None:
        if self.listed.count:
            self.open(self.listed.cursor)

    # For subclasses.

    def draw(self, line: int, width: int) -> Cells:
        """Return the parts of a line."""
        raise NotImplementedError

    def tick(self) -> None:
        """Show new results."""
        raise NotImplementedError

    def open(self, line: int) -> None:
        """Go to the place of a line."""
        raise NotImplementedError


class SearchScreen(ResultScreen):
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

    def on_mount(self) -> None:  # Textual also calls the base class's method afterwards
        self.listed.grow(len(self._search.hits), keep=max(self._search.at, 0))

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


class RunsScreen(ResultScreen):
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
