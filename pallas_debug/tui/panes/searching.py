"""Modal list of the hits of a search over many texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from textual import on
from textual.timer import Timer
from textual.widgets import Input

from pallas_debug.render import plural
from pallas_debug.tui.model.search import DumpSearch, HitGroup, TextHit
from pallas_debug.tui.panes.dialogs import ListScreen
from pallas_debug.tui.widgets.cells import (
    Cells,
    between,
    cells,
    fitted,
    plain,
    spans,
    visible,
    without_locations,
)
from pallas_debug.tui.widgets.lists import LineList

TICK = 0.1
"""Seconds between updates of the list."""

DEBOUNCE = 0.15
"""Seconds without typing before a search starts."""


PREVIEWED = 6
"""Number of hits of a group that are previewed."""


class Preview(LineList, can_focus=False):
    """View of the first hits of a group, each in its whole line."""


class SearchScreen(ListScreen[None]):
    """Screen for a search over many texts, run while the user types.

    Hits are grouped by kernel, and by texts that have the same ones. The first hits of the group
    under the cursor are shown below.

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
        self._rows: list[HitGroup | None] = []
        """Groups, and None for the row of a kernel above its groups."""
        self._listed = 0
        self._preview = Preview()

    def on_mount(self) -> None:
        self.query_one("#results").mount(self._preview, before="#summary")
        wanted = self._search.at
        self.set_interval(TICK, self.tick)
        self.tick()
        at = (n for n, row in enumerate(self._rows) if row and wanted in row.hits)
        self.listed.grow(len(self._rows), keep=next(at, None))

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
        if len(search.groups) != self._listed:
            self._list_groups()
        group = self._group(self.listed.cursor)
        search.at = group.hits[0] if group is not None else -1
        self.show_summary(search.status or "type to search; enter opens a hit, then n and N")
        self._preview.show(list(self._rows_of(group)) if group is not None else [])

    def _list_groups(self) -> None:
        """List the groups below their kernels."""
        groups = list(self._search.groups)
        self._rows = []
        for _, of_kernel in itertools.groupby(groups, key=lambda group: group.entry):
            self._rows += [None, *of_kernel]
        is_first, self._listed = self._listed == 0, len(groups)
        self.listed.grow(len(self._rows), keep=1 if is_first else None)

    def _group(self, line: int) -> HitGroup | None:
        """Return the group in a row; the first one of a kernel in the row with its name."""
        rows = self._rows[line : line + 2]
        return next((group for group in rows if group is not None), None)

    def draw(self, line: int, width: int) -> Cells:
        group, is_kernel = self._group(line), self._rows[line] is None
        if group is None:
            return []
        if is_kernel:
            of_kernel = [g for g in self._search.groups if g.entry == group.entry]
            count = sum(g.count * len(g.texts) for g in of_kernel)
            return [
                (visible(group.entry.name), "bold text-primary"),
                (f"  {plural(count, 'hit')}", "text-muted"),
            ]
        room = min(max(width * 2 // 5, 12), 60)
        place = _place_of(group)
        parts: Cells = [(f"  {fitted(visible(place), room)}", "text-muted")]
        parts.append((f"{group.count:>6} ", "text-muted"))
        return [*parts, *_around(self._search.hits[group.hits[0]], width - room - 9)]

    def _rows_of(self, group: HitGroup) -> Iterator[Cells]:
        """Yield the rows of the first hits of a group."""
        width = max(self._preview.columns, 20)
        for hit in self._search.hits[group.hits.start : group.hits.stop][:PREVIEWED]:
            before, match, after = hit.parts
            after = plain(without_locations(spans(after)))
            number = (f"{hit.line + 1:>8}  ", "text-muted")
            parts = [number, (before.lstrip(), ""), (match, "hit"), (after, "")]
            length = sum(cells(text) for text, _ in parts)
            yield from (between(parts, at, at + width) for at in range(0, length, width))

    def open(self, line: int) -> None:
        group = self._group(line)
        if group is not None:
            self._search.at = group.hits[0]
            self.dismiss()
            self._opened(self._search.hits[group.hits[0]])


def _place_of(group: HitGroup) -> str:
    """Return the targets and stages of a group: `v5e, v6e  mosaic … 09-tiling  (12 texts)`."""
    targets = dict.fromkeys(target for target, _ in group.texts if target)
    stages = list(dict.fromkeys(stage for _, stage in group.texts))
    shown = stages[0] if len(stages) == 1 else f"{stages[0]} … {stages[-1]}"
    count = f"({len(group.texts)} texts)" if len(group.texts) > 1 else ""
    return "  ".join(filter(None, (shown, ", ".join(targets), count)))


def _around(hit: TextHit, room: int) -> Cells:
    """Return the part of a line around its match."""
    before, match, after = hit.parts
    before, after = before.lstrip(), plain(without_locations(spans(after)))
    start = max(len(before) - max(room - len(match) - 10, 8), 0)
    return [("…" * bool(start) + before[start:], ""), (match, "hit"), (after, "")]
