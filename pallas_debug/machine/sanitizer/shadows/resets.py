"""Lines that reset a buffer, and the conditions under which they do."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.wording.facts import Reset
from pallas_debug.machine.sanitizer.shadows.tracked import Point


def reset(
    step: ir.MachineStep, around: Sequence[ir.Branch], places: Sequence[tuple[Point, Point]],
    index: str | None, reaches: bool,
) -> Reset | None:  # fmt: skip
    """A step that replaces contents of a buffer, as a fact; None if its line is not known.

    Args:
      around: conditions, outermost first.
      places: grid points and loop iterations.
      index: the slice that it writes; None for the whole buffer.
      reaches: whether it writes an element that was read.
    """
    if step.site.line is None:
        return None
    return Reset(
        line=step.site.line.line,
        points=tuple(point for point, _ in places),
        loops=tuple(loop for _, loop in places),
        index=index,
        reaches=reaches,
        condition=_condition(around),
    )


def _condition(around: Sequence[ir.Branch]) -> str | None:
    """Source of the condition of the innermost `pl.when`; None if it is not on one line."""
    for branch in reversed(around):
        line = branch.site.line
        text = "" if line is None else line.text or linecache.getline(line.file, line.line)
        _, found, rest = text.partition("pl.when(")
        if not found:
            continue
        depth = 1
        for i, char in enumerate(rest):
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return rest[:i]
        return None
    return None
