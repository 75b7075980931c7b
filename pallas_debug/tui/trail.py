"""What became of an operation: a row for each pass, with its fate there and the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from textual import events
from textual.message import Message

from pallas_debug.ir.follow import Fate, Trail
from pallas_debug.ir.operations import Module
from pallas_debug.tui import highlight
from pallas_debug.tui.lineview import Cells, LineView

Became = Fate | Literal["new", "first"]

FATES: dict[Became, str] = {
    "first": "",
    "new": "+ new",
    "same": "= same",
    "changed": "~ changed",
    "renamed": "→ renamed",
    "split": "⑂ split",
    "merged": "⑃ merged",
    "gone": "✗ gone",
}
"""How a fate is drawn: `new` where there was nothing before that it came from."""

_BACKWARDS: dict[Fate, Became] = {"split": "merged", "merged": "split", "gone": "new"}
"""What a pass did, where it is told from what it left."""

_SHOWN = 1000


@dataclass(frozen=True, kw_only=True)
class TrailRow:
    """A row.

    Attributes:
      position: of the pass in the row of passes that was given.
      line: of its text, from 0; None where the operation is gone.
      became: what the pass did to the operation.
      here: whether this is the line that was asked about.
    """

    position: int
    line: int | None
    became: Became
    text: str
    here: bool = False


Loader = Callable[[], Sequence[Module]]
"""Gives the modules of all passes, in order. Called in a thread."""


class TrailPane(LineView):
    """The passes that an operation went through, the one that one came from among them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "trail--pass",
        "trail--same",
        "trail--fate",
        "trail--gone",
        "trail--note",
        "trail--operation",
        "trail--value",
    }
    DEFAULT_CSS = """
    TrailPane {
        & .trail--same { text-style: dim; }
        & .trail--fate { color: $text-warning; text-style: bold; }
        & .trail--gone { color: $text-error; text-style: bold; }
        & .trail--note { text-style: italic; }
        & .trail--operation { text-style: bold; }
        & .trail--value { color: $text-accent; }
    }
    """

    class Chosen(Message):
        """A row was chosen: a pass, and a line of its text from 0."""

        def __init__(self, view: TrailPane, position: int, line: int) -> None:
            self.view = view
            self.position = position
            self.line = line
            super().__init__()

        @property
        def control(self) -> TrailPane:
            return self.view

    class Made(Message):
        """The trail is known."""

        def __init__(self, view: TrailPane) -> None:
            self.view = view
            super().__init__()

        @property
        def control(self) -> TrailPane:
            return self.view

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._labels: Sequence[str] = ()
        self._shown: list[TrailRow] = []
        self._note = ""

    @property
    def count(self) -> int:
        return len(self._shown) or bool(self._note)

    @property
    def following(self) -> bool:
        """Whether the trail is still being made."""
        return not self._shown and bool(self._note)

    def follow(self, load: Loader, labels: Sequence[str], position: int, line: int) -> None:
        """Show what became of the operation on a line of one of the passes, and what it was.

        Args:
          load: gives the modules of the passes.
          labels: of the passes, as many as there are modules.
          position: of the pass, among these.
          line: of its text, from 0.
        """
        self._labels, self._shown = labels, []
        self._note = (
            f"following line {line + 1} of {labels[position]} through {len(labels)} passes…"
        )
        self.changed(keep=0)
        self.aside(partial(self._follow_aside, load, position, line), "trail")

    async def _follow_aside(self, load: Loader, position: int, line: int) -> None:
        rows = await asyncio.to_thread(trail_rows, load, position, line)
        self._shown = rows
        self.changed(keep=next(n for n, row in enumerate(rows) if row.here))
        self.post_message(self.Made(self))

    @property
    def current(self) -> TrailRow | None:
        return self._shown[self.cursor] if self._shown else None

    def choose(self) -> bool:
        """Ask to be led to the line under the cursor; whether there is one."""
        row = self.current
        if row is None or row.line is None:
            return False
        self.post_message(self.Chosen(self, row.position, row.line))
        return True

    def on_click(self, event: events.Click) -> None:
        """A click on the line under the cursor chooses it; another one moves the cursor there."""
        if self.line_at(event.y) == self.cursor:
            self.choose()

    def cells(self, line: int) -> Cells:
        if not self._shown:
            return [(self._note, "trail--note")]
        row = self._shown[line]
        widest = max(map(len, self._labels))
        repeated = line > 0 and self._shown[line - 1].position == row.position
        label = "" if repeated else self._labels[row.position]
        fate = "" if repeated else FATES[row.became]
        style = row.became if row.became in ("same", "gone") else "fate"
        number = "" if row.line is None else f"{row.line + 1}"
        parts = highlight.without_locations(highlight.spans(row.text.strip()))
        return [
            ("▶" if row.here else " ", "trail--fate"),
            (f"{label:<{widest}}  ", "trail--pass"),
            (f"{fate:<10}", f"trail--{style}"),
            (f"{number:>6}  ", "trail--same"),
            *((text, self._style_of(kind)) for text, kind in parts),
        ]

    def _style_of(self, kind: str) -> str:
        return f"trail--{kind}" if f"trail--{kind}" in self.COMPONENT_CLASSES else ""


def trail_rows(load: Loader, position: int, line: int) -> list[TrailRow]:
    """The rows of a trail, from the first pass in which the operation was to the last."""
    modules = load()
    trail = Trail(modules)
    places: dict[int, tuple[int, ...]] = {position: (line,)}
    became: dict[int, Became] = {}
    for step in trail.trace(position, line):
        became[step.module + 1] = _BACKWARDS.get(step.fate, step.fate)
        if step.lines:
            places[step.module] = step.lines
    became.setdefault(min(places), "first")
    for step in trail.follow(position, line):
        places[step.module], became[step.module] = step.lines, step.fate
    return [
        TrailRow(
            position=at,
            line=number,
            became=became[at],
            text="" if number is None else modules[at].lines[number][:_SHOWN],
            here=(at, number) == (position, line),
        )
        for at in sorted(places)
        for number in places[at] or (None,)
    ]
