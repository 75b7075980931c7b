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


def compute(members: Sequence[PendingEquation]) -> ir.Compute:
    """Return a step that evaluates one equation, and keeps its results even if they are unused."""
    (item,) = members
    step = units.compute(members, {out.number for out in item.outputs})
    if not isinstance(step.evaluate, Unit):
        return step
    return replace(step, evaluate=_evaluator(step.evaluate))


def _evaluator(unit: Unit) -> Callable[..., Sequence[Any]]:
    """The compiled unit, of a kernel that may have been traced with 64-bit values."""
    names = {str(getattr(v.aval, "dtype", "")) for v in (*unit.invars, *unit.outvars)}
    if names.isdisjoint({"float64", "int64", "uint64", "complex128"}):
        return unit.compiled

    def evaluate(*values: Any) -> Sequence[Any]:
        with jax.enable_x64(True):  # otherwise jax would truncate them
            return unit.compiled(*values)

    return evaluate


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
