"""Bounds of integer arrays, computed without looking at their elements.

An interval is a pair of Python floats if it is known before the run, otherwise of traced float32
scalars: the bounds of an iota plus a scalar are computed from the scalar. float32 covers the range
of any integer dtype, with rounding, and `beyond` allows for the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.jaxcompat import jax_core

Interval = tuple[Any, Any]
"""Smallest and largest element."""

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
    found = exact(eqn, ranges)
    if found is None and name in _SAME:
        found = ranges[0]
    if found is None and name in _MONOTONE and None not in ranges:
        low, high = zip(*(r for r in ranges if r is not None), strict=True)
        found = (_MONOTONE[name](*low), _MONOTONE[name](*high))
    if name == "convert_element_type" and ranges[0] is not None:
        limits = jnp.iinfo(aval.dtype)
        keeps = aval.dtype.itemsize >= 4 and limits.min < 0
        found = ranges[0] if keeps or within(ranges[0], limits.min, limits.max) else None
    return found if found is not None else _of_dtype(aval.dtype)


def exact(eqn: Any, ranges: Sequence[Interval | None]) -> Interval | None:
    """Bounds of an exact arithmetic result, if those of all operands are known."""
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or None in ranges:
        return None
    return rule(eqn, *ranges)


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


def terms(eqn: Any) -> int:
    """Number of terms in each element of a sum."""
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.name == "dot_general":
        axes = eqn.params["dimension_numbers"][0][0]
    else:
        axes = eqn.params["axes"] if "axes" in eqn.params else (eqn.params["axis"],)
    return math.prod(shape[axis] for axis in axes)


def _of_dtype(dtype: Any) -> Interval | None:
    if not jnp.issubdtype(dtype, jnp.integer) or dtype.itemsize > 2:
        return None
    limits = jnp.iinfo(dtype)
    return float(limits.min), float(limits.max)


def _least(*values: Any) -> Any:
    if all(isinstance(v, (int, float)) for v in values):
        return min(values)
    found = values[0]
    for value in values[1:]:
        found = jnp.minimum(found, value)
    return found


def _greatest(*values: Any) -> Any:
    if all(isinstance(v, (int, float)) for v in values):
        return max(values)
    found = values[0]
    for value in values[1:]:
        found = jnp.maximum(found, value)
    return found


def _union(ranges: Sequence[Interval | None]) -> Interval | None:
    if None in ranges or not ranges:
        return None
    low, high = zip(*(r for r in ranges if r is not None), strict=True)
    return _least(*low), _greatest(*high)


def _remainder(ranges: Sequence[Interval | None]) -> Interval | None:
    value, divisor = ranges
    if divisor is None or not is_static(divisor):
        return None
    most = max(abs(divisor[0]), abs(divisor[1])) - 1
    is_positive = value is not None and is_static(value) and value[0] >= 0
    return (0.0 if is_positive else -most), most


def _products(a: Interval, b: Interval) -> Interval:
    corners = [x * y for x in a for y in b]
    return _least(*corners), _greatest(*corners)


def _scaled(a: Interval, count: float) -> Interval:
    """Bounds of any sum of up to `count` terms."""
    return _least(a[0] * count, a[0]), _greatest(a[1] * count, a[1])


def _sum(eqn: Any, a: Interval) -> Interval:
    count = float(terms(eqn))
    if eqn.primitive.name == "cumsum":
        return _scaled(a, count)
    return a[0] * count, a[1] * count


def _contraction(eqn: Any, a: Interval, b: Interval) -> Interval:
    low, high = _products(a, b)
    count = float(terms(eqn))
    return low * count, high * count


def _magnitude(eqn: Any, a: Interval) -> Interval:
    low, high = abs(a[0]), abs(a[1])
    return 0.0, _greatest(low, high)


def _square(eqn: Any, a: Interval) -> Interval:
    power = eqn.params.get("y", 2)
    most = _greatest(abs(a[0]), abs(a[1])) ** power
    return -most, most


_RULES: dict[str, Callable[..., Interval]] = {
    "add": lambda eqn, a, b: (a[0] + b[0], a[1] + b[1]),
    "add_any": lambda eqn, a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda eqn, a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda eqn, a, b: _products(a, b),
    "neg": lambda eqn, a: (-a[1], -a[0]),
    "abs": _magnitude,
    "square": _square,
    "integer_pow": _square,
    "reduce_sum": _sum,
    "cumsum": _sum,
    "dot_general": _contraction,
}
"""Bounds of arithmetic whose exact result may not fit."""

_MONOTONE: dict[str, Callable[..., Any]] = {
    "max": _greatest,
    "min": _least,
    "clamp": lambda low, value, high: _least(_greatest(value, low), high),
}

_SAME = {
    *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "copy"),
    *("dynamic_slice", "reduce_max", "reduce_min"),
}
"""Operations that add no elements; their other operands are indices."""
