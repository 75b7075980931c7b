"""Python lines link the texts of a kernel: the cursor stays on one, and values stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on

from pallas_debug.errors import DumpFormatError
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import TextPlace
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.workspace import Workspace

if TYPE_CHECKING:
    from pallas_debug.stepping.computed import Line, LineValues


class LinkActions(Workspace):
    """Going from text to text on one Python line, and showing recorded values."""

    _origin: tuple[Line, float] | None = None
    """Python line under the cursor, and where among the lines that come from it."""
    _seeks_origin = False
    """Whether the cursor has yet to go to the lines of a new text that come from there."""

    def show_step(self) -> None:
        is_new = self._shown_place != self.place
        if is_new:
            self._remember_origin(self.place)
        super().show_step()
        self._seeks_origin = is_new and not self.diffing
        self._seek_origin(self.place)

    def _remember_origin(self, place: TextPlace | None) -> None:
        """Remember the Python line of the text that is left for one of the same kernel."""
        shown = self._shown_place
        if shown is None or place is None or shown.entry != place.entry:
            self._origin = None
            return
        found = [(s.file, s.line) for s in self.text.origin]
        if shown.step.stage == "source":
            found = [(self.browser.source_file(shown.entry) or "", self.text.cursor + 1)]
        for line in found:
            lines = self.lines_from(line, shown)
            if self.text.cursor in lines:
                self._origin = line, lines.index(self.text.cursor) / len(lines)
                return
        if self.text.cursor:  # the user went to a line that comes from no Python line
            self._origin = None

    def _seek_origin(self, place: TextPlace | None) -> None:
        """Go to a line of a new text that comes from the same Python line, once that is known."""
        if not self._seeks_origin or self._origin is None or place is None:
            return
        if not self.text.linked or self.text.cursor:
            return
        self._seeks_origin = False
        line, share = self._origin
        if lines := self.lines_from(line, place):
            self.text.go_to(lines[int(share * len(lines))])

    @on(TextPane.TextChanged)
    def _seek_origin_later(self) -> None:
        if self.is_composed:
            self._seek_origin(self.place)

    def lines_from(self, line: Line, place: TextPlace) -> Sequence[int]:
        """Return the lines of the text shown, from 0, that come from a Python line."""
        if place.step.stage == "source":
            is_file = self.browser.source_file(place.entry) == line[0]
            return [line[1] - 1] if is_file and line[1] <= self.text.count else []
        return self.text.module.from_source.get(line, []) if self.text.module.lines else []

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

    @action("values.point", "", "values at a grid point, chosen from a list")
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
        """Whether there are values; otherwise a message says why not."""
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
        """Show beside each line what it computed at the grid point."""
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
