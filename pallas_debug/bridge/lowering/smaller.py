"""Smaller versions of a captured kernel, for a search that keeps those that fail the same way.

A version has fewer grid points or fewer equations. The results of an equation that is removed are
zeros, and what no longer reaches an effect or a result goes with it. The operands and their types
stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import closed_as, jax_core, opened, partial_eval
from pallas_debug.bridge.jaxprs import nested

Version = tuple[str, Capture]
"""A description of the change, such as `removed 7 equations`, and the changed kernel."""


def size(captured: Capture) -> int:
    """Number of equations of a kernel, at any depth, without those that make zeros."""
    return sum(not _is_zero(eqn) for eqn in nested.equations(_body(captured)))


def versions(captured: Capture) -> Iterator[Version]:
    """Yield smaller versions of a kernel, those that remove most first."""
    yield from _of_grid(captured)
    now = size(captured)
    removable = [
        number
        for number, eqn in enumerate(nested.equations(_body(captured)))
        if not _is_zero(eqn) and not any(map(nested.is_ref, eqn.outvars))
    ]
    length = len(removable)
    while length:
        for start in range(0, len(removable), length):
            chosen = removable[start : start + length]
            version = _without(captured, chosen)
            if size(version) < now:
                count = "an equation" if length == 1 else f"{len(chosen)} equations"
                yield f"removed {count}", version
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


def _without(captured: Capture, removed: Collection[int]) -> Capture:
    """Remove equations by number, in the order of `nested.equations`, and those that are dead."""
    numbers = itertools.count()

    def edited(jaxpr: Any) -> Any:
        found: list[Any] = []
        known: dict[Any, Any] = {}
        for old in jaxpr.eqns:
            number = next(numbers)
            params = nested.edited(old.params, edited)
            if number in removed:
                zeros, scalars = _zeros(old)
                found += zeros
                known |= scalars
            else:
                atoms = [_now(atom, known) for atom in old.invars]
                found.append(old.replace(params=params, invars=atoms))
        outvars = [_now(atom, known) for atom in jaxpr.outvars]
        made = jaxpr.replace(eqns=found, outvars=outvars)
        return partial_eval.dce_jaxpr(made, [True] * len(outvars), instantiate=True)[0]

    old = captured.params["jaxpr"]
    new = closed_as(old, edited(opened(old)[0]))
    return replace(captured, params={**captured.params, "jaxpr": new})


def _now(atom: Any, known: dict[Any, Any]) -> Any:
    return atom if isinstance(atom, jax_core.Literal) else known.get(atom, atom)


def _is_zero(eqn: Any) -> bool:
    is_constant = all(isinstance(atom, jax_core.Literal) for atom in eqn.invars)
    return eqn.primitive.name == "broadcast_in_dim" and is_constant


def _zeros(eqn: Any) -> tuple[list[Any], dict[Any, Any]]:
    """Equations that make zeros in place of an equation's results, and literals for scalars."""
    made, known = [], {}
    for var in eqn.outvars:
        shape, dtype = var.aval.shape, var.aval.dtype
        zeros, _ = opened(jax.make_jaxpr(lambda s=shape, d=dtype: jnp.zeros(s, d))())
        if zeros.eqns:
            made.append(zeros.eqns[-1].replace(outvars=[var]))
        else:  # a scalar
            known[var] = jax_core.Literal(dtype.type(0), var.aval)
    return made, known
