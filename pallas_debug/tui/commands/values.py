"""Values of a recorded run beside the lines that computed them."""

from __future__ import annotations

from textual import on

from pallas_debug.errors import DumpFormatError
from pallas_debug.stepping.computed import Line, LineValues
from pallas_debug.tui.keys import action
from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.workspace import Workspace


class ValueActions(Workspace):
    """Showing recorded values."""

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
        if self.has_values and self.recorded is not None and self.point is not None:
            for place, found in self.recorded.at(self.point).items():
                at = self._last_line_from(place)
                text = "" if at is None else self._recorded_text(found)
                if at is not None and text:
                    texts[at] = f"{texts[at]}; {text}" if at in texts else text
        self.text.put_beside(texts)

    def _recorded_text(self, found: LineValues) -> str:
        assert self.recorded is not None
        try:
            return self.recorded.text(found)
        except DumpFormatError as error:
            return str(error)

    def _last_line_from(self, place: Line) -> int | None:
        """Return the last line of the text that comes from a Python line, if any does."""
        step = self.steps.current
        if step is not None and step.stage == "source" and self.entry is not None:
            is_file = self.browser.source_file(self.entry) == place[0]
            return place[1] - 1 if is_file and place[1] <= self.text.count else None
        origins = self.text.module.from_source if self.text.module.lines else {}
        return max(origins.get(place, ()), default=None)
