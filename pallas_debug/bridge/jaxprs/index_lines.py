"""Lines on which a kernel computes the indices of its accesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.normal_forms import ScopeForm
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
        computed: a position in the grid, the counter of a loop, a number.
        """
        if access is None:
            return None
        found = {line for jaxpr in self._jaxprs for line in _makers(jaxpr, access, dim, {})}
        if len(found) != 1:
            return None
        (line,) = found
        return line if str(line) != str(access) else None


def _makers(
    jaxpr: Any, access: SourceLine, dim: int, outer: Mapping[Any, Any]
) -> Iterator[SourceLine | None]:
    """Lines of the equations that make the index of accesses at a line; None for no equation.

    Args:
      outer: equations that make what the jaxpr closes over.
    """
    made = {**outer, **{out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}}

    def maker_of(atom: Any) -> Any:
        return made.get(atom) if isinstance(atom, jax_core.Var) else None

    for eqn in jaxpr.eqns:
        form = primitives.form(eqn)
        closed_over = getattr(form, "constants", getattr(form, "inputs", ()))
        for inner, _ in nested.within(eqn.params):
            binders = inner.constvars if isinstance(form, ScopeForm) else inner.invars
            known = zip(binders, map(maker_of, closed_over), strict=False)
            yield from _makers(inner, access, dim, dict(known))
        starts = [start for at in getattr(form, "places", ()) for start in at.starts()]
        source = lines.source_of(eqn) if starts else None
        if source is None or source.place != access.place:
            continue
        for maker in (maker_of(start) for number, start in starts if number == dim):
            while maker is not None and maker.primitive.name in primitives.FORMS:
                maker = maker_of(maker.invars[0])
            is_computed = maker is not None and maker.primitive.name not in _OF_THE_GRID
            yield lines.source_of(maker) if is_computed else None
