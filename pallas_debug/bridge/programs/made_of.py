"""Composition of a unit's outputs: inputs, sums, reductions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

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


def choice_behind(step: ir.Compute, kept: Container[int]) -> ir.StepSite | None:
    """The first `select_n` of a step that chooses between one of some inputs and anything else.

    Args:
      kept: registers of these inputs.
    """
    if step.unit is None:
        return None
    pairs = zip(step.inputs, step.unit.invars, strict=True)
    derived = {variable for reg, variable in pairs if reg.number in kept}
    found = _choice(step.unit.eqns, derived)
    return None if found is None else step.unit.sites[found]


def _choice(eqns: Iterable[Any], derived: set[Any]) -> int | None:
    """Number of the first equation that chooses between a derived variable and anything else."""
    for i, eqn in enumerate(eqns):
        is_selection = eqn.primitive.name == "select_n"
        known = [isinstance(a, jax_core.Var) and a in derived for a in eqn.invars[is_selection:]]
        call = nested.inlined(eqn)
        if call is not None:
            given = {v for v, is_in in zip(call[0].invars, known, strict=True) if is_in}
            is_choice = _choice(call[0].eqns, given) is not None
        else:
            is_choice = is_selection and any(known) and not all(known)
        if is_choice:
            return i
        if any(known):
            derived.update(eqn.outvars)
    return None


def scaled_from(unit: Unit, derived: Container[int]) -> list[bool]:
    """For each output, whether it is computed from products of certain inputs and other values.

    Args:
      derived: positions of these inputs.
    """
    given = {variable for i, variable in enumerate(unit.invars) if i in derived}
    _, scaled = _followed(unit.eqns, given, set())
    return [isinstance(v, jax_core.Var) and v in scaled for v in unit.outvars]


_PRODUCTS = {"mul", "div", "dot_general"}


def _followed(
    eqns: Iterable[Any], derived: set[Any], scaled: set[Any]
) -> tuple[set[Any], set[Any]]:
    """Follow variables through equations: all that derive from them, and those in a product."""
    for eqn in eqns:
        given = [atom if isinstance(atom, jax_core.Var) else None for atom in eqn.invars]
        if not any(atom in derived for atom in given):
            continue
        call = nested.inlined(eqn)
        if call is None:
            derived.update(eqn.outvars)
            if eqn.primitive.name in _PRODUCTS or any(atom in scaled for atom in given):
                scaled.update(eqn.outvars)
            continue
        jaxpr = call[0]
        pairs = list(zip(jaxpr.invars, given, strict=True))
        _followed(
            jaxpr.eqns,
            inner := {variable for variable, atom in pairs if atom in derived},
            inner_scaled := {variable for variable, atom in pairs if atom in scaled},
        )
        for outer, variable in zip(eqn.outvars, jaxpr.outvars, strict=True):
            if isinstance(variable, jax_core.Var):
                derived.update([outer] if variable in inner else [])
                scaled.update([outer] if variable in inner_scaled else [])
    return derived, scaled


_SUMS = {"add", "sub", "add_any"}
_FORMS = {
    *("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "expand_dims"),
    *("transpose", "copy", "copy_p", "reduce_precision"),
}
"""Primitives whose result is their operand in a different form."""


def sum_behind(unit: Unit, output: int) -> int | bool:
    """Return whether an output is a sum, in any form, that no other equation uses.

    If it is an input in a different form, which no other equation uses, return the input's
    position.
    """
    uses = Counter(v for eqn in unit.eqns for v in nested.variables(eqn.invars))
    uses.update(unit.outvars)
    makers = {variable: eqn for eqn in unit.eqns for variable in eqn.outvars}
    variable = unit.outvars[output]
    while uses[variable] == 1:
        if variable not in makers:
            return list(unit.invars).index(variable)
        eqn = makers[variable]
        if eqn.primitive.name in _SUMS:
            return True
        if eqn.primitive.name not in _FORMS or isinstance(eqn.invars[0], jax_core.Literal):
            return False
        variable = eqn.invars[0]
    return False


_TOTALS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "dot_general")
_OF_ELEMENTS = {
    *(
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "neg",
        "abs",
        "exp",
        "exp2",
        "log",
        "sqrt",
        "rsqrt",
    ),
    *("tanh", "logistic", "integer_pow", "square"),
}
"""Elementwise primitives."""

_Ways = frozenset[frozenset[int]]
"""Ways in which a value is computed from reductions, each with the inputs that must be
reductions."""

_MAX_WAYS = 4
"""Maximum number of ways that are followed: a chain of products has as many ways as factors."""


def totals_behind(unit: Unit, output: int) -> _Ways:
    """Return ways in which an output is computed only from sums or other reductions of arrays.

    Scalars do not count, nor do factors of a reduction, such as the scale of a block. Each way is a
    set of positions of inputs that must be such reductions too; there is none if the output is
    computed from anything else.
    """
    ways: dict[object, _Ways | None] = {
        variable: frozenset([frozenset([i])]) if variable.aval.shape else None
        for i, variable in enumerate(unit.invars)
    }
    spread = set()
    for eqn in unit.eqns:
        name = eqn.primitive.name
        given = [a for a in eqn.invars if not isinstance(a, jax_core.Literal)]
        counted = [(atom, found) for atom in given if (found := ways.get(atom)) is not None]
        made: _Ways = frozenset()
        if name in _TOTALS:
            made = frozenset([frozenset()])
        elif not counted or (name not in _FORMS and name not in _OF_ELEMENTS):
            pass  # computed from scalars only, or from something else
        elif name in ("mul", "div"):
            factors = counted if name == "mul" else counted[: eqn.invars[0] is counted[0][0]]
            alone = [found for atom, found in factors if len(counted) == 1 or atom not in spread]
            made = frozenset().union(*alone) or _together(found for _, found in counted)
        else:
            made = _together(found for _, found in counted)
        made = frozenset(sorted(made, key=len)[:_MAX_WAYS])
        for variable in eqn.outvars:
            ways[variable] = made if getattr(variable.aval, "shape", ()) else None
        if name == "broadcast_in_dim":
            spread |= set(eqn.outvars)
    atom = unit.outvars[output]
    found = None if isinstance(atom, jax_core.Literal) else ways[atom]
    return frozenset() if found is None else found


def _together(each: Iterable[_Ways]) -> _Ways:
    """Ways in which several values are computed from reductions together."""
    made: _Ways = frozenset([frozenset()])
    for ways in each:
        made = frozenset(one | other for one in made for other in ways)
    return made
