"""Pane below the text: the history of an operation, text by text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events, work

from pallas_debug.ir.operations import Module
from pallas_debug.tui.widgets.cells import Cells, spans, without_locations
from pallas_debug.tui.widgets.lineview import LineView, ViewMessage

if TYPE_CHECKING:
    from pallas_debug.ir.follow import Fate

PassFate = Literal["same", "changed", "renamed", "split", "merged", "gone", "new", "first"]

FATES: dict[PassFate, str] = {
    "first": "",
    "new": "+ new",
    "same": "= same",
    "changed": "~ changed",
    "renamed": "→ renamed",
    "split": "⑂ split",
    "merged": "⑃ merged",
    "gone": "✗ gone",
}
"""Labels of fates: an operation is `new` if it does not come from one in the previous pass."""

_BACKWARDS: dict[Fate, PassFate] = {"split": "merged", "merged": "split", "gone": "new"}
"""Action of a pass for each fate that is found by following the passes backwards."""

_MAX_TEXT = 1000


@dataclass(frozen=True, kw_only=True)
class TrailRow:
    """Row of a trail: an operation in one pass.

    Attributes:
      position: index of the pass.
      line: line of the pass's text, from 0; None if the operation is gone.
      fate: what the pass did to the operation.
      here: whether the trail starts from this line.
    """

    position: int
    line: int | None
    fate: PassFate
    text: str
    here: bool = False


Loader = Callable[[], Sequence[Module]]
"""Function that returns the modules of all passes, in order. Called in a thread."""


class TrailPane(LineView):
    """Pane with an operation's history through the passes before and after the current one."""

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

    class Chosen(ViewMessage):
        """Message: the user chose a pass, and a line of its text, from 0."""

        def __init__(self, view: TrailPane, position: int, line: int) -> None:
            super().__init__(view)
            self.position = position
            self.line = line

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
        """True if the trail is being computed."""
        return not self._shown and bool(self._note)

    def follow(self, load: Loader, labels: Sequence[str], position: int, line: int) -> None:
        """Show the trail of the operation on a line of a pass.

        Args:
          load: returns the modules of the passes.
          labels: label of each pass.
          position: index of the pass.
          line: line of the pass's text, from 0.
        """
        self._labels, self._shown = labels, []
        self._note = (
            f"following line {line + 1} of {labels[position]} through {len(labels)} passes…"
        )
        self.changed(keep=0)
        self._follow(load, position, line)

    @work(exclusive=True, group="trail")
    async def _follow(self, load: Loader, position: int, line: int) -> None:
        rows = await asyncio.to_thread(trail_rows, load, position, line)
        self._shown = rows
        if not rows:
            self._note = f"line {line + 1} is no longer in the text; it was replaced meanwhile"
        self.changed(keep=next((n for n, row in enumerate(rows) if row.here), 0))

    @property
    def current(self) -> TrailRow | None:
        return self._shown[self.cursor] if self._shown else None

    def choose(self) -> bool:
        """Choose the line under the cursor; return whether there is one."""
        row = self.current
        if row is None or row.line is None:
            return False
        self.post_message(self.Chosen(self, row.position, row.line))
        return True

    def on_click(self, event: events.Click) -> None:
        """Choose the line under the cursor; a click on another line moves the cursor."""
        if self.line_at(event.y) == self.cursor:
            self.choose()

    def cells(self, line: int) -> Cells:
        if not self._shown:
            return [(self._note, "trail--note")]
        row = self._shown[line]
        widest = max(map(len, self._labels))
        repeated = line > 0 and self._shown[line - 1].position == row.position
        label = "" if repeated else self._labels[row.position]
        fate = "" if repeated else FATES[row.fate]
        style = row.fate if row.fate in ("same", "gone") else "fate"
        number = "" if row.line is None else f"{row.line + 1}"
        parts = without_locations(spans(row.text.strip()))
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
    """Return the rows of a trail, from the first pass with the operation to the last.

    Empty if the pass no longer has the line, as a file may be replaced at any time.
    """
    from pallas_debug.ir.follow import Trail

    modules = load()
    if line >= len(modules[position].lines):
        return []
    trail = Trail(modules)
    places: dict[int, tuple[int, ...]] = {position: (line,)}
    fates: dict[int, PassFate] = {}
    for step in trail.trace(position, line):
        fates[step.module + 1] = _BACKWARDS.get(step.fate, step.fate)
        if step.lines:
            places[step.module] = step.lines
    fates.setdefault(min(places), "first")
    for step in trail.follow(position, line):
        places[step.module], fates[step.module] = step.lines, step.fate
    return [
        TrailRow(
            position=at,
            line=number,
            fate=fates[at],
            text="" if number is None else modules[at].lines[number][:_MAX_TEXT],
            here=(at, number) == (position, line),
        )
        for at in sorted(places)
        for number in places[at] or (None,)
    ]
