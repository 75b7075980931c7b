"""Equations evaluated one by one, for the debugger: each kind is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.units import Unit

if TYPE_CHECKING:
    from pallas_debug.bridge.programs.decode import PendingEquation


def _is_wide(unit: Unit) -> bool:
    """Return whether a kernel was traced with 64-bit values, which jax would otherwise truncate."""
    (eqn,) = unit.eqns
    names = {str(getattr(atom.aval, "dtype", "")) for atom in (*eqn.invars, *eqn.outvars)}
    return not names.isdisjoint({"float64", "int64", "uint64", "complex128"})


def _in_64_bits(unit: Unit) -> Callable[..., Sequence[Any]]:
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
        return replace(step, evaluate=_in_64_bits(unit) if _is_wide(unit) else unit.compiled)
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
