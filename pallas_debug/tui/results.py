"""Lists that lie over the panes: hits of a search, findings and prints. They lead to a place."""

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

from pallas_debug.tui.cells import visible
from pallas_debug.tui.everywhere import Found, Search
from pallas_debug.tui.lineview import Cells, LineView
from pallas_debug.tui.listpane import fitted
from pallas_debug.tui.model import kernel_name
from pallas_debug.tui.runs import KEPT, Result, Runs

TICK = 0.1
"""Seconds between two times that progress is shown."""

SOON = 0.15
"""Seconds that one must not type for a search to begin."""


class ResultList(LineView, can_focus=False):
    """The list itself; the screen's keys move in it, while one types above it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"results--hit", "results--place", "results--bad"}
    DEFAULT_CSS = """
    ResultList {
        & .results--hit { background: $warning; color: $background; text-style: bold; }
        & .results--place { text-style: dim; }
        & .results--bad { color: $text-error; text-style: bold; }
        &:nocolor .results--hit { text-style: bold reverse; }
    }
    """

    def __init__(self, draw: Callable[[int, int], Cells]) -> None:
        super().__init__()
        self._draw = draw
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def grow(self, count: int, *, keep: int | None = None) -> None:
        """There are so many lines now."""
        self._count = count
        self.changed(keep=keep)

    def cells(self, line: int) -> Cells:
        mark = "›" if line == self.cursor else " "
        return [(f"{mark} ", ""), *self._draw(line, max(self.columns - 2, 1))]

    class Clicked(Message):
        """A line was clicked twice."""

    def on_click(self, event: events.Click) -> None:
        super().on_click(event)
        if event.chain == 2:
            self.post_message(self.Clicked())


class ResultScreen(ModalScreen[None]):
    """A line to type in, a list below it, and how much there is of what.

    Args:
      title: what is listed.
      hint: what may be typed.
      value: what stands there at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "peel", "stop, then close", show=False),
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
            yield Static(id="said", markup=False)

    def on_mount(self) -> None:
        self.set_interval(TICK, self.tick)
        self.tick()

    @property
    def listed(self) -> ResultList:
        return self.query_one(ResultList)

    def say(self, text: str) -> None:
        self.query_one("#said", Static).update(visible(text), layout=False)

    def action_move(self, lines: int) -> None:
        self.listed.action_move(lines)

    def action_page(self, pages: float) -> None:
        self.listed.action_page(pages)

    def action_peel(self) -> None:
        """Close, unless there is something to stop first."""
        self.dismiss()

    @on(Input.Submitted)
    @on(ResultList.Clicked)
    def _entered(self) -> None:
        if self.listed.count:
            self.open(self.listed.cursor)

    # What subclasses say.

    def draw(self, line: int, width: int) -> Cells:
        """What stands on a line."""
        raise NotImplementedError

    def tick(self) -> None:
        """Show what has come since."""
        raise NotImplementedError

    def open(self, line: int) -> None:
        """Go where a line leads."""
        raise NotImplementedError


class SearchScreen(ResultScreen):
    """A search over many texts, as it is typed.

    Args:
      begin: begins a search for a text.
      more: lists more hits, if one comes near the last.
      opened: goes to a hit.
    """

    def __init__(
        self,
        search: Search,
        title: str,
        *,
        begin: Callable[[str], None],
        more: Callable[[], None],
        opened: Callable[[Found], None],
    ) -> None:
        super().__init__(title, hint="regular expression", value=search.text)
        self._search = search
        self._begin = begin
        self._more = more
        self._opened = opened
        self._soon: Timer | None = None

    def on_mount(self) -> None:
        super().on_mount()
        self.listed.grow(len(self._search.hits), keep=max(self._search.at, 0))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        if event.value == self._search.text:
            return
        self._search.clear()
        self.tick()
        if self._soon is not None:
            self._soon.stop()
        text = event.value
        self._soon = self.set_timer(SOON, lambda: self._start(text))

    def _start(self, text: str) -> None:
        self._soon = None
        self._begin(text)
        self.tick()

    def action_peel(self) -> None:
        if not self._search.stop():
            self.dismiss()
        self.tick()

    def tick(self) -> None:
        search = self._search
        if len(search.hits) != self.listed.count:
            self.listed.grow(len(search.hits))
        search.at = self.listed.cursor if search.hits else -1
        self._more()
        self.say(search.said or "type what to look for; enter goes there, n and N go on")

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
    """Findings and prints of runs; what is typed filters them.

    Args:
      opened: goes to the kernel and line of one.
    """

    def __init__(self, runs: Runs, *, opened: Callable[[Result], None]) -> None:
        super().__init__("findings and prints", hint="filter: test, kernel, line or words")
        self._runs = runs
        self._opened = opened
        self._text = ""
        self._shown: Sequence[Result] = ()
        self._seen = (-1, "")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
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
        kept = f", the first {KEPT:,} listed" if runs.count > KEPT else ""
        state = "" if runs.whole else ", reading"
        nothing = "; pytest with --pallas-interpret or --pallas-check makes some"
        hint = nothing if runs.whole and not runs.count else ""
        of = f"findings and prints of {runs.records:,} tests and scripts"
        self.say(f"{shown}{runs.count:,} {of}{kept}{state}{hint}")

    def draw(self, line: int, width: int) -> Cells:
        result = self._shown[line]
        name = result.test.rpartition("::")[2]
        room = max(width // 6, 8)
        place = f" {result.place}" if result.place else ""
        mark = "⚑ " if result.kind == "finding" else "  "
        return [
            (mark, "results--bad"),
            (f"{fitted(visible(name), room)} ", "results--place"),
            (f"{fitted(visible(kernel_name(result.kernel)), room)} ", ""),
            (f"{fitted(visible(result.line), min(room, 16))} ", "results--place"),
            (result.text, "results--bad" if result.kind == "finding" else ""),
            (place, "results--place"),
        ]

    def open(self, line: int) -> None:
        self.dismiss()
        self._opened(self._shown[line])
