"""Equations evaluated one by one, for the debugger: each kind is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.units import Unit

if TYPE_CHECKING:
    from pallas_debug.bridge.programs.decode import PendingEquation

Evaluate = Callable[..., Sequence[Any]]

_MAX_KEPT = 4096
_compiled: dict[Any, Evaluate] = {}


def evaluator(unit: Unit) -> Evaluate:
    """Compiled function for a unit of one equation, shared by equal equations."""
    (eqn,) = unit.eqns
    literals = tuple(
        (str(atom.aval), np.asarray(atom.val).tobytes())
        if isinstance(atom, jax_core.Literal)
        else str(atom.aval)
        for atom in eqn.invars
    )
    twice = tuple(eqn.invars.index(atom) for atom in eqn.invars if isinstance(atom, jax_core.Var))
    try:
        key: Any = (eqn.primitive, tuple(sorted(eqn.params.items())), literals, twice)
        key = key, eqn.ctx, jax.config.jax_enable_x64
        found = _compiled.get(key)
    except TypeError:  # a parameter is not hashable
        return unit.compiled
    if found is None:
        if len(_compiled) >= _MAX_KEPT:
            _compiled.clear()
        found = _compiled[key] = _in_64_bits(unit) if _is_wide(unit) else unit.compiled
    return found


def _is_wide(unit: Unit) -> bool:
    """Return whether a kernel was traced with 64-bit values, which jax would otherwise truncate."""
    (eqn,) = unit.eqns
    names = {str(getattr(atom.aval, "dtype", "")) for atom in (*eqn.invars, *eqn.outvars)}
    return not names.isdisjoint({"float64", "int64", "uint64", "complex128"})


def _in_64_bits(unit: Unit) -> Evaluate:
    def evaluate(*values: Any) -> Sequence[Any]:
        with jax.enable_x64(True):
            return unit.compiled(*values)

    return evaluate


def compute(members: Sequence[PendingEquation]) -> ir.Compute:
    """Return a step that evaluates one equation, and keeps its results even if they are unused."""
    (item,) = members
    step = units.compute(members, {out.number for out in item.outputs})
    unit = step.unit
    if isinstance(unit, Unit) and step.evaluate is unit:
        return replace(step, evaluate=evaluator(unit))
    return step


def prepare(program: ir.KernelProgram) -> None:
    """Compile the equations of a program that was decoded with `fuse=False`.

    Otherwise, a step in the debugger would take the time of a compilation, about 50 ms, when it
    reaches an equation for the first time.
    """
    for step in program.all_steps():
        if not isinstance(step, ir.Compute) or not isinstance(step.unit, Unit):
            continue
        zeros = [np.zeros(v.aval.shape, v.aval.dtype) for v in step.unit.invars]
        step.evaluate(*zeros)
