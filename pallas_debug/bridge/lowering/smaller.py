"""Smaller versions of a captured kernel, for a search that keeps those that fail the same way.

A version has fewer grid points, fewer equations, loops that run once, or a branch in place of a
condition. The results of an equation that is removed are zeros, and what no longer reaches an
effect or a result goes with it. The operands and their types stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import (
    closed_as,
    conditionals,
    jax_core,
    loops,
    opened,
    scan_sizes,
)
from pallas_debug.bridge.jaxprs import nested

Version = tuple[str, Capture]
"""A description of the change, such as `removed 7 equations`, and the changed kernel."""

Edit = tuple[list[Any], dict[Any, Any]]
"""Equations in place of one, and atoms in place of its results."""


def size(captured: Capture) -> int:
    """Number of equations of a kernel, at any depth, without those that make zeros."""
    return sum(not _is_zero(eqn) for eqn in nested.equations(_body(captured)))


def versions(captured: Capture) -> Iterator[Version]:
    """Yield smaller versions of a kernel, those that remove most first."""
    yield from _of_grid(captured)
    eqns = list(enumerate(nested.equations(_body(captured))))
    for number, eqn in eqns:
        if eqn.primitive is conditionals.cond_p:
            for i in range(len(eqn.params["branches"])):
                yield _edited(captured, f"took branch {i} of a condition", {number: _branch(i)})
        elif eqn.primitive is loops.scan_p and _may_run_once(eqn):
            yield _edited(captured, f"ran a loop of {eqn.params['length']} once", {number: _once})
    now = size(captured)
    removable = [
        number
        for number, eqn in eqns
        if not _is_zero(eqn) and not any(map(nested.is_ref, eqn.outvars))
    ]
    length = len(removable)
    while length:
        for start in range(0, len(removable), length):
            chosen = removable[start : start + length]
            count = "an equation" if length == 1 else f"{len(chosen)} equations"
            version = _edited(captured, f"removed {count}", dict.fromkeys(chosen, _removed))
            if size(version[1]) < now:
                yield version
        length //= 2


def _body(captured: Capture) -> Any:
    return opened(captured.params["jaxpr"])[0]


def _of_grid(captured: Capture) -> Iterator[Version]:
    mapping = captured.params["grid_mapping"]
    for axis, extent in enumerate(mapping.grid):
        if isinstance(extent, int) and extent > 1:
            grid = tuple(1 if i == axis else n for i, n in enumerate(mapping.grid))
            params = {**captured.params, "grid_mapping": mapping.replace(grid=grid)}
            what = f"reduced grid dimension {axis} from {extent} to 1"
            yield what, replace(captured, params=params)


def _edited(captured: Capture, what: str, edits: dict[int, Callable[[Any], Edit]]) -> Version:
    old = captured.params["jaxpr"]
    new = closed_as(old, _Editor(edits).run(opened(old)[0]))
    return what, replace(captured, params={**captured.params, "jaxpr": new})


class _Editor:
    """Edits equations by number, in the order of `nested.equations`, and drops dead ones."""

    def __init__(self, edits: dict[int, Callable[[Any], Edit]]) -> None:
        self._edits = edits
        self._numbers = itertools.count()

    def run(self, jaxpr: Any) -> Any:
        found: list[Any] = []
        known: dict[Any, Any] = {}
        for old in jaxpr.eqns:
            number = next(self._numbers)
            params = nested.edited(old.params, self.run)
            eqn = old.replace(params=params, invars=[_now(atom, known) for atom in old.invars])
            eqns, results = self._edits[number](eqn) if number in self._edits else ([eqn], {})
            found += eqns
            known |= results
        outvars = [_now(atom, known) for atom in jaxpr.outvars]
        return jaxpr.replace(eqns=_live(found, outvars), outvars=outvars)


def _live(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """Equations with an effect or a used result."""
    wanted, found = set(nested.variables(outvars)), []
    for eqn in reversed(eqns):
        if eqn.effects or not wanted.isdisjoint(eqn.outvars):
            found.append(eqn)
            wanted.update(nested.variables(eqn.invars))
    return found[::-1]


def _now(atom: Any, known: dict[Any, Any]) -> Any:
    return atom if isinstance(atom, jax_core.Literal) else known.get(atom, atom)


# Edits of an equation


def _is_zero(eqn: Any) -> bool:
    is_constant = all(isinstance(atom, jax_core.Literal) for atom in eqn.invars)
    return eqn.primitive.name == "broadcast_in_dim" and is_constant


def _removed(eqn: Any) -> Edit:
    """Remove an equation; its results are zeros."""
    made, known = [], {}
    for var in eqn.outvars:
        shape, dtype = var.aval.shape, var.aval.dtype
        zeros, _ = opened(jax.make_jaxpr(lambda s=shape, d=dtype: jnp.zeros(s, d))())
        if zeros.eqns:
            made.append(zeros.eqns[-1].replace(outvars=[var]))
        else:  # a scalar
            known[var] = jax_core.Literal(dtype.type(0), var.aval)
    return made, known


def _branch(index: int) -> Callable[[Any], Edit]:
    """Replace a condition by one of its branches, with variables of its own."""

    def taken(eqn: Any) -> Edit:
        jaxpr, consts = opened(eqn.params["branches"][index])
        known = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *eqn.invars[1:]), strict=True)
        )
        eqns = []
        for inner in jaxpr.eqns:
            atoms = [_now(atom, known) for atom in inner.invars]
            known |= {var: jax_core.Var(var.aval) for var in inner.outvars}
            eqns.append(inner.replace(invars=atoms, outvars=[known[v] for v in inner.outvars]))
        results = [_now(atom, known) for atom in jaxpr.outvars]
        return eqns, dict(zip(eqn.outvars, results, strict=True))

    return taken


def _may_run_once(eqn: Any) -> bool:
    """Return whether a loop takes and returns nothing per iteration."""
    num_consts, num_carry = scan_sizes(eqn.params)
    is_plain = len(eqn.invars) == num_consts + num_carry and len(eqn.outvars) == num_carry
    return is_plain and eqn.params["length"] > 1


def _once(eqn: Any) -> Edit:
    return [eqn.replace(params={**eqn.params, "length": 1})], {}
