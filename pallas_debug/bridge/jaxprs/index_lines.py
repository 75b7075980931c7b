"""Lines on which a kernel computes the indices of its accesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.model import SourceLine

_OF_THE_GRID = frozenset(("program_id", "num_programs", "axis_index"))
"""Primitives whose result is not computed, but a position."""


class IndexLines:
    """Lines that compute indices, by the lines of the accesses that use them.

    Args:
      jaxprs: bodies of a kernel.
    """

    def __init__(self, jaxprs: Iterable[Any]) -> None:
        self._jaxprs = tuple(jaxprs)

    def of(self, access: SourceLine | None, dim: int) -> SourceLine | None:
        """The line that computes the index along a dimension.

        None if that is the line of the access, if several lines do, or if the index is not
        computed beside it: a position in the grid, the counter of a loop, a number.
        """
        if access is None:
            return None
        found = {line for jaxpr in self._jaxprs for line in _makers(jaxpr, access, dim)}
        if len(found) != 1:
            return None
        (line,) = found
        return line if str(line) != str(access) else None


def _makers(jaxpr: Any, access: SourceLine, dim: int) -> Iterator[SourceLine | None]:
    """Lines of the equations that make the index of accesses at a line; None for no equation."""
    made = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    for eqn in jaxpr.eqns:
        for inner in nested.within(eqn.params):
            yield from _makers(inner.jaxpr, access, dim)
        starts = [
            start for at in getattr(primitives.form(eqn), "places", ()) for start in at.starts()
        ]
        source = lines.source_of(eqn) if starts else None
        if source is None or source.place != access.place:
            continue
        for start in (start for number, start in starts if number == dim):
            maker = made.get(start) if isinstance(start, jax_core.Var) else None
            while maker is not None and maker.primitive.name in primitives.FORMS:
                maker = made.get(maker.invars[0])
            is_computed = maker is not None and maker.primitive.name not in _OF_THE_GRID
            yield lines.source_of(maker) if is_computed else None
