"""Shadow computation of 16-bit float sums in float32.

A buffer that is read, added to and written back loses some precision at every step; the loss only
shows in comparison with a precise sum. `shadowed` computes the outputs of a unit from float32
shadows of some of its inputs: the precise contents of such a buffer. Values that do not depend on
these are kept, rounded as in the kernel, so that only the accumulation is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as jax_core

from pallas_debug.bridge.instrument.conditions import is_float
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs.arithmetic import numerics
from pallas_debug.bridge.programs.units import Unit

NARROW = frozenset({"bfloat16", "float16"})
"""Dtypes in which accumulation is judged."""


def accumulates(eqns: Sequence[Any], source: Any, target: Any) -> bool:
    """Return whether a value that is loaded is stored again with something added to it.

    Args:
      source: variable of what is loaded, a 16-bit float.
      target: variable of what is stored to the same place.
    """
    depends, added = {source}, set[Any]()
    for eqn in eqns:
        used = depends.intersection(nested.variables(eqn.invars))
        if used:
            depends.update(eqn.outvars)
            if eqn.primitive.name in ("add", "add_any", "sub") or used & added:
                added.update(eqn.outvars)
    return target in added


def is_narrow(unit: Unit, source: int) -> bool:
    """Return whether an input of a unit is a 16-bit float."""
    return _name(unit.invars[source]) in NARROW


def _name(variable: Any) -> str:
    return getattr(getattr(variable.aval, "dtype", None), "name", "")


def shadowed(
    unit: Unit, roots: Collection[Any]
) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """Compile a unit for shadows: a function of its inputs and of the shadows of `roots`.

    The function returns an output for each of the unit's, in float32 where it depends on a root and
    is a 16-bit float otherwise.
    """
    order = [v for v in unit.invars if v in roots]

    def run(values: Sequence[Any], shadows: Sequence[Any]) -> list[Any]:
        known = nested.JaxprValues(unit.invars, values)
        wide = dict(zip(order, shadows, strict=True))
        for eqn in unit.eqns:
            inputs = known.read(eqn.invars)
            outputs = numerics.evaluated(eqn, inputs)
            known.bind(eqn.outvars, outputs)
            variables = nested.variables(eqn.invars)
            if not any(v in wide for v in variables) or not is_float(outputs[0]):
                continue
            given = [
                wide[a] if not isinstance(a, jax_core.Literal) and a in wide else _widened(x)
                for a, x in zip(eqn.invars, inputs, strict=True)
            ]
            wide[eqn.outvars[0]] = numerics.evaluated(_in_float32(eqn), given)[0]
        exact = zip(unit.outvars, known.read(unit.outvars), strict=True)
        return [wide[v] if _is_shadowed(v, wide) else x for v, x in exact]

    compiled = jax.jit(run)
    return lambda values, shadows: compiled(list(values), list(shadows))


def loss(value: Any, shadow: Any) -> tuple[float, tuple[int, ...], float]:
    """Compare a 16-bit sum with its shadow.

    Returns the largest error as a fraction of the shadow's largest entry, the index of its element,
    and that entry. The error is 0 where the shadow is not finite, which is another fault.
    """
    wide = np.asarray(shadow, "float64")
    largest = float(np.abs(wide).max(initial=0))
    if not wide.size or not np.isfinite(largest) or largest == 0:
        return 0.0, (0,) * wide.ndim, largest
    error = np.abs(np.asarray(value).astype("float64") - wide)
    element = np.unravel_index(int(np.nanargmax(error)), error.shape) if wide.ndim else ()
    return float(error[element]) / largest, tuple(int(n) for n in element), largest


def _is_shadowed(atom: Any, wide: dict[Any, Any]) -> bool:
    return not isinstance(atom, jax_core.Literal) and atom in wide


def _widened(value: Any) -> Any:
    is_narrow = jnp.result_type(value).name in NARROW
    return jnp.asarray(value).astype("float32") if is_narrow else value


def _in_float32(eqn: Any) -> Any:
    """Return the equation with every 16-bit float dtype in its parameters replaced by float32."""
    params = dict(eqn.params)
    for name in ("new_dtype", "preferred_element_type", "dtype"):
        dtype = params.get(name)
        if dtype is not None and np.dtype(dtype).name in NARROW:
            params[name] = np.dtype("float32")
    return eqn.replace(params=params)
