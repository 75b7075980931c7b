"""Actions behind the keys, a file per kind, in the order of the help."""

# isort: off
from pallas_debug.tui.commands import panes, go, kernels, passes, search, text, diffs, source
from pallas_debug.tui.commands import runs, output, program

__all__ = [
    "panes",
    "kernels",
    "go",
    "passes",
    "search",
    "text",
    "diffs",
    "source",
    "runs",
    "output",
    "program",
]
