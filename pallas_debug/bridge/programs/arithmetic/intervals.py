"""Bounds of integer arrays, computed without looking at their elements.

An interval is a pair of Python floats if it is known before the run, otherwise of traced float32
scalars: the bounds of an iota plus a scalar are computed from the scalar. float32 covers the range
of any integer dtype, with rounding, and `beyond` allows for the rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge import primitive_rules as rules
from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.primitive_rules import Interval

Intervals = dict[Any, Interval]
"""Known bounds, by variable."""


def of_inputs(variables: Sequence[Any], values: Sequence[Any]) -> Intervals:
    """Bounds of inputs: a scalar's value, or the range of a narrow dtype."""
    found: Intervals = {}
    for variable, value in zip(variables, values, strict=True):
        dtype = variable.aval.dtype
        if not jnp.issubdtype(dtype, jnp.integer):
            continue
        if variable.aval.shape == ():
            scalar = jnp.asarray(value).astype("float32")
            found[variable] = (scalar, scalar)
        else:
            narrow = _of_dtype(dtype)
            if narrow is not None:
                found[variable] = narrow
    return found


def of_atom(atom: Any, known: Mapping[Any, Interval]) -> Interval | None:
    """Bounds of an operand, if known."""
    dtype = getattr(atom.aval, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_):
        return None
    if isinstance(atom, jax_core.Literal):
        value = np.asarray(atom.val)
        return (float(value.min()), float(value.max())) if value.size else None
    if atom in known:
        return known[atom]
    return (0.0, 1.0) if dtype == jnp.bool_ else _of_dtype(dtype)


def of_equation(eqn: Any, ranges: Sequence[Interval | None]) -> Interval | None:
    """Bounds of the result of an equation, if known, assuming that it does not wrap."""
    name = eqn.primitive.name
    aval: Any = eqn.outvars[0].aval if eqn.outvars else None
    if not jnp.issubdtype(getattr(aval, "dtype", bool), jnp.integer):
        return None
    if name == "iota":
        return 0.0, float(max(0, aval.shape[eqn.params["dimension"]] - 1))
    if name == "rem":
        return _remainder(ranges)
    if name == "select_n":
        return _union(ranges[1:])
    if name == "concatenate":
        return _union(ranges)
    row = primitives.TABLE.get(name)
    found = exact(eqn, ranges)
    if row is not None and row.interval is rules.same_bounds:
        found = ranges[0]
    if row is not None and row.is_monotone and row.interval and None not in ranges:
        low, high = zip(*(r for r in ranges if r is not None), strict=True)
        found = (row.interval(*low), row.interval(*high))
    if name == "convert_element_type" and ranges[0] is not None:
        limits = jnp.iinfo(aval.dtype)
        keeps = aval.dtype.itemsize >= 4 and limits.min < 0
        found = ranges[0] if keeps or within(ranges[0], limits.min, limits.max) else None
    return found if found is not None else _of_dtype(aval.dtype)


def exact(eqn: Any, ranges: Sequence[Interval | None]) -> Interval | None:
    """Bounds of an exact arithmetic result, if those of all operands are known."""
    row = primitives.TABLE.get(eqn.primitive.name)
    if row is None or row.interval is None or None in ranges:
        return None
    if row.is_monotone or row.interval is rules.same_bounds:
        return None
    bounds: Interval = row.interval(eqn, *ranges)
    return bounds


def within(bounds: Interval | None, low: int, high: int) -> bool:
    """Return whether bounds known before the run lie in a range."""
    return is_static(bounds) and low <= bounds[0] and bounds[1] <= high  # type: ignore[index]


def excludes(bounds: Interval | None, number: int) -> bool:
    """Return whether bounds known before the run exclude a number."""
    return is_static(bounds) and (number < bounds[0] or bounds[1] < number)  # type: ignore[index]


def beyond(bounds: Interval, low: int, high: int) -> Any:
    """Return a traced bool, whether bounds may leave a range; None for static ones."""
    if is_static(bounds):
        return None
    slack = 1 - 2.0**-16 if high >= 2**24 else 1
    return (bounds[1] > high * slack) | (bounds[0] < low * slack)


def is_static(bounds: Interval | None) -> bool:
    return bounds is not None and all(isinstance(b, (int, float)) for b in bounds)


def _of_dtype(dtype: Any) -> Interval | None:
    if not jnp.issubdtype(dtype, jnp.integer) or dtype.itemsize > 2:
        return None
    limits = jnp.iinfo(dtype)
    return float(limits.min), float(limits.max)


def _union(ranges: Sequence[Interval | None]) -> Interval | None:
    if None in ranges or not ranges:
        return None
    low, high = zip(*(r for r in ranges if r is not None), strict=True)
    return rules.least(*low), rules.greatest(*high)


def _remainder(ranges: Sequence[Interval | None]) -> Interval | None:
    value, divisor = ranges
    if divisor is None or not is_static(divisor):
        return None
    most = max(abs(divisor[0]), abs(divisor[1])) - 1
    is_positive = value is not None and is_static(value) and value[0] >= 0
    return (0.0 if is_positive else -most), most
