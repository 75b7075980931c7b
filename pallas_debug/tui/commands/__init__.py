"""What each key does, a file per kind. The order here is that of the help."""

# isort: off
from pallas_debug.tui.commands import panes, passes, search, text, diffs, source, output, program

__all__ = ["panes", "passes", "search", "text", "diffs", "source", "output", "program"]
