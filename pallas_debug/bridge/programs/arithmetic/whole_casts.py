"""Casts of integers to float dtypes with too few bits, where every bit may count.

A rounded integer is no fault by itself: a product in int32 that is scaled and stored in bfloat16 is
as exact as its result can be. It is one if the float is used as the integer that it was: if it is
cast back, compared with another one, or is the angle of a sine. `rounded_integers` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp

from pallas_debug.bridge.instrument.primitives import COMPARISONS
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs.arithmetic import whole_products

CAST = "convert_element_type"
ANGLES = ("sin", "cos")
EXTREMES = frozenset({"max", "min", "reduce_max", "reduce_min", "clamp"})
KEEPS = EXTREMES | {
    *("reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "copy"),
    *("concatenate", "rev", "select_n", "add", "sub", "mul", "neg", "abs", "round", "floor"),
    *("ceil", "div", "reduce_sum", "dot_general"),
}
"""Primitives that are followed from a cast to a use of the number."""


def tests(
    eqns: Sequence[Any], mixed: Collection[int]
) -> dict[int, Callable[[Sequence[Any], Sequence[Any]], Any]]:
    """Return traced tests of a unit's equations: whether any whole number loses bits.

    Args:
      mixed: numbers of the equations with bits instead of numbers.
    """
    products = whole_products.cast_to_integers(eqns)
    found: dict[int, Callable[[Sequence[Any], Sequence[Any]], Any]] = {
        i: lambda inputs, _: whole_products.loses_bits(inputs) for i in products
    }
    return found | dict.fromkeys(_used_casts(eqns) - set(mixed), _is_rounded)


def _is_rounded(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Return whether a cast to a float changes any number; float32 is compared by magnitude."""
    (value,), (result,) = inputs, outputs
    if jnp.result_type(value) == result.dtype:
        return jnp.array(False)
    if jnp.issubdtype(jnp.result_type(value), jnp.floating) or result.dtype.itemsize < 4:
        return jnp.any(result.astype("float32") != value.astype("float32"))
    most = 2 ** (jnp.finfo(result.dtype).nmant + 1)
    return jnp.any((value > most) | (value < -most))


def _used_casts(eqns: Sequence[Any]) -> set[int]:
    """Numbers of casts to floats on the way from an integer to a use in which each bit counts."""
    wanted: set[Any] = set()
    casts = []
    for i in reversed(range(len(eqns))):
        eqn = eqns[i]
        name, variables = eqn.primitive.name, nested.variables(eqn.invars)
        if (name == CAST and not is_float(eqn.outvars[0])) or name in COMPARISONS or name in ANGLES:
            wanted.update(variables)
        elif not wanted.isdisjoint(eqn.outvars) and (name in KEEPS or name == CAST):
            wanted.update(variables)
            casts += [i] if name == CAST else []
    whole = {v for eqn in eqns for v in eqn.outvars if casts_integer(eqn)}
    for eqn in eqns:
        if eqn.primitive.name in KEEPS or eqn.primitive.name == CAST:
            whole.update(() if whole.isdisjoint(nested.variables(eqn.invars)) else eqn.outvars)
    return {i for i in casts if not whole.isdisjoint(eqns[i].outvars)}


def casts_integer(eqn: Any) -> bool:
    """Return whether an equation casts an integer to a float."""
    return bool(
        eqn.primitive.name == CAST
        and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.integer)
        and is_float(eqn.outvars[0])
    )


def is_float(variable: Any) -> bool:
    return bool(jnp.issubdtype(getattr(variable.aval, "dtype", None), jnp.floating))
