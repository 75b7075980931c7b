"""The pane of the Python source; the other panes have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pallas_debug.tui.kernelpane import KernelPane as KernelPane
from pallas_debug.tui.lineview import Cells, LineView
from pallas_debug.tui.steppane import StepPane as StepPane
from pallas_debug.tui.textpane import TextPane as TextPane


class SourcePane(LineView):
    """The kernel's Python file as the dump keeps it; lines that operations come from are marked."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"source--number", "source--origin"}
    DEFAULT_CSS = """
    SourcePane {
        & .source--number { text-style: dim; }
        & .source--origin { color: $text-accent; text-style: bold; }
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._lines: list[str] = []
        self._counts: dict[int, int] = {}

    @property
    def count(self) -> int:
        return len(self._lines)

    def show(self, lines: Sequence[str], counts: dict[int, int]) -> None:
        """Show a file; `counts` says how many lines of the text come from each of its lines."""
        self._lines, self._counts = list(lines), counts
        self.changed()

    def prefix(self, line: int) -> Cells:
        operations = self._counts.get(line + 1, 0)
        origin = f"{operations:>4} ▌" if operations else "     ▏"
        return [
            (f"{line + 1:>{len(str(self.count))}} ", "source--number"),
            (origin, "source--origin" if operations else "source--number"),
        ]

    def cells(self, line: int) -> Cells:
        return [(self._lines[line], "")]
