"""Inputs behind a unit's outputs, and numbers that a kernel compares with."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
from jax._src import core as jax_core

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.units import Unit


def inputs_behind(unit: Unit, *, with_choices: bool = True) -> list[frozenset[int]]:
    """Positions of the inputs that each output is computed from.

    Args:
      with_choices: whether also those that only decide between values.
    """
    if with_choices not in unit.behind:
        unit.behind[with_choices] = _inputs_behind(unit, with_choices)
    return unit.behind[with_choices]


def registers_behind(
    step: ir.Compute, numbers: Container[int], *, with_choices: bool = True
) -> list[ir.Reg]:
    """Inputs of a step from which some of its outputs are computed."""
    wanted = [i for i, reg in enumerate(step.outputs) if reg.number in numbers]
    if step.unit is None:
        return list(step.inputs) if wanted else []
    behind = inputs_behind(step.unit, with_choices=with_choices)
    positions = frozenset[int]().union(*(behind[i] for i in wanted))
    return [step.inputs[i] for i in sorted(positions)]


def _inputs_behind(unit: Unit, with_choices: bool) -> list[frozenset[int]]:
    known = {variable: frozenset([i]) for i, variable in enumerate(unit.invars)}
    for eqn in unit.eqns:
        found = [
            known[atom]
            for atom in nested.variables(eqn.invars)
            if with_choices or atom.aval.dtype != bool
        ]
        known.update(dict.fromkeys(eqn.outvars, frozenset[int]().union(*found)))
    return [known[variable] for variable in unit.outvars]


def compared_numbers(steps: Iterable[ir.MachineStep]) -> tuple[float, ...]:
    """Numbers other than zero that the code tests values for equality with, in its order."""
    found: dict[float, None] = {}
    for step in steps:
        unit = step.unit if isinstance(step, ir.Compute) else None
        for eqn in unit.eqns if unit is not None else ():
            for atom in eqn.invars if eqn.primitive.name in ("eq", "ne") else ():
                if isinstance(atom, jax_core.Literal) and np.size(atom.val) == 1:
                    found[np.asarray(atom.val).item()] = None
    return tuple(number for number in found if number and isinstance(number, int | float))
