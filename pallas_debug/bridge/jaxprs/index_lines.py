"""Lines on which a kernel computes the indices of its accesses."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import indexing, jax_core
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.primitives import FIRST_INDEX, FORMS
from pallas_debug.model import SourceLine

_OF_THE_GRID = frozenset(("program_id", "num_programs", "axis_index"))
"""Primitives whose result is not computed, but a position."""

_Place = tuple[str, int, int]
"""File and line of an access, and a dimension."""


class IndexLines:
    """Lines that compute indices, by the lines of the accesses that use them.

    Args:
      jaxprs: bodies of a kernel.
    """

    def __init__(self, jaxprs: Iterable[Any]) -> None:
        self._jaxprs = tuple(jaxprs)
        self._makers: dict[Any, Any] = {}
        self._given: dict[Any, Any] = {}

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
    def _found(self) -> Mapping[_Place, set[SourceLine | None]]:
        for jaxpr in self._jaxprs:
            self._read(jaxpr)
        found: defaultdict[_Place, set[SourceLine | None]] = defaultdict(set)
        for jaxpr in self._jaxprs:
            for eqn in nested.equations(jaxpr):
                for dim, start in _starts(eqn):
                    if (line := lines.source_of(eqn)) is not None:
                        found[line.file, line.line, dim].add(self._line(start))
        return found

    def _read(self, jaxpr: Any) -> None:
        """Record which equation makes each variable, and what the inputs of nested jaxprs are."""
        for eqn in jaxpr.eqns:
            self._makers.update(dict.fromkeys(eqn.outvars, eqn))
            for inner, atoms in _given(eqn):
                for variable, atom in zip(inner.invars, atoms, strict=False):
                    known = self._given.setdefault(variable, atom)
                    self._given[variable] = atom if known is atom else None  # called twice
            for inner in nested.within(eqn.params):
                self._read(jaxcompat.opened(inner)[0])

    def _line(self, atom: Any) -> SourceLine | None:
        while atom is not None and not isinstance(atom, jax_core.Literal):
            eqn = self._makers.get(atom)
            if eqn is None:
                atom = self._given.get(atom)
            elif eqn.primitive.name in FORMS:
                atom = eqn.invars[0]
            else:
                is_position = eqn.primitive.name in _OF_THE_GRID
                return None if is_position else lines.source_of(eqn)
        return None


def _given(eqn: Any) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield the jaxprs of an equation whose first inputs are operands of it, with these."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        for branch in params["branches"]:
            yield jaxcompat.opened(branch)[0], eqn.invars[1:]
    elif name == "scan":
        constants, _ = jaxcompat.scan_sizes(params)
        yield jaxcompat.opened(params["jaxpr"])[0], eqn.invars[:constants]
    elif name == "while":
        start = params["cond_nconsts"]
        constants = eqn.invars[start : start + params["body_nconsts"]]
        yield jaxcompat.opened(params["body_jaxpr"])[0], constants
    elif (called := nested.inlined(eqn)) is not None:
        yield called[0], eqn.invars


def _starts(eqn: Any) -> Iterator[tuple[int, Any]]:
    """Yield the dimensions that an equation indexes by a variable, with the first element."""
    tree = eqn.params.get("tree", eqn.params.get("args_tree"))
    first = FIRST_INDEX.get(eqn.primitive.name, 0)
    atoms = eqn.invars[first:]
    if getattr(tree, "num_leaves", None) != len(atoms):  # operations of a SparseCore differ
        return
    operands = tree.unflatten(atoms)
    for one in jax.tree.leaves(operands, is_leaf=_is_indexer):
        if _is_indexer(one):
            for dim, index in enumerate(one.indices):
                start = index.start if isinstance(index, indexing.Slice) else index
                if isinstance(start, jax_core.Var):
                    yield dim, start


def _is_indexer(value: Any) -> bool:
    return isinstance(value, indexing.NDIndexer)
