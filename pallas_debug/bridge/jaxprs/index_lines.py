"""Lines on which a kernel computes the indices of its accesses."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pallas_debug.bridge import primitives
from pallas_debug.bridge.dataflow.backward import Backward
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.model import SourceLine

_OF_THE_GRID = frozenset(("program_id", "num_programs", "axis_index"))
"""Primitives whose result is not computed, but a position."""

_Places = frozenset[tuple[str, int, int]]
"""File and line of accesses that a value is an index of, and the dimension."""


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
        found = self._found.get((access.file, access.line, dim))
        if found is None or len(found) > 1:
            return None
        (line,) = found
        return line if str(line) != str(access) else None

    @functools.cached_property
    def _found(self) -> Mapping[tuple[str, int, int], set[SourceLine | None]]:
        walk = _Indices()
        for jaxpr in self._jaxprs:
            for wanted in walk.run(jaxpr, [walk.nothing] * len(jaxpr.outvars)):
                walk.literal(wanted)
        return walk.found


class _Indices(Backward[_Places]):
    """Backward walk that collects the lines on which indices are computed.

    Attributes:
      found: lines that compute an index; None for one that is not computed.
    """

    nothing = frozenset()

    def __init__(self) -> None:
        self.found: defaultdict[tuple[str, int, int], set[SourceLine | None]] = defaultdict(set)

    def join(self, a: _Places, b: _Places) -> _Places:
        return a | b

    def literal(self, wanted: _Places) -> None:
        self._computed(wanted, None)

    def carry(self, wanted: Sequence[_Places]) -> Sequence[_Places]:
        self._computed(self.nothing.union(*wanted), None)
        return [self.nothing] * len(wanted)

    def equation(self, eqn: Any, wanted: Sequence[_Places]) -> Sequence[_Places]:
        places = self.nothing.union(*wanted)
        if nested.within(eqn.params):  # the line of the call, branch or loop counts
            self._computed(places, lines.source_of(eqn) if places else None)
            wanted = [self.nothing] * len(wanted)
        return super().equation(eqn, wanted)

    def transfer(self, eqn: Any, wanted: Sequence[_Places]) -> Sequence[_Places]:
        places = self.nothing.union(*wanted)
        if eqn.primitive.name in primitives.FORMS:
            return [places, *[self.nothing] * (len(eqn.invars) - 1)]
        if places:
            is_position = eqn.primitive.name in _OF_THE_GRID
            self._computed(places, None if is_position else lines.source_of(eqn))
        form = primitives.form(eqn)
        starts = [start for at in getattr(form, "places", ()) for start in at.starts()]
        line = lines.source_of(eqn) if starts else None
        indices: defaultdict[Any, _Places] = defaultdict(frozenset)
        for dim, start in starts:
            if isinstance(start, jax_core.Var) and line is not None:
                indices[start] |= {(line.file, line.line, dim)}
        is_literal = [isinstance(atom, jax_core.Literal) for atom in eqn.invars]
        return [
            self.nothing if literal else indices[atom]
            for literal, atom in zip(is_literal, eqn.invars, strict=True)
        ]

    def _computed(self, places: _Places, line: SourceLine | None) -> None:
        for place in places:
            self.found[place].add(line)
