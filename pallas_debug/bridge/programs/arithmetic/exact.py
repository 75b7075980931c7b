"""Exact results of arithmetic, computed by numpy in wider types, and tests of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.primitive_rules import divided_exactly, terms
from pallas_debug.bridge.primitives import SUMS, TABLE


def integers(eqn: Any, inputs: Sequence[Any]) -> Any:
    """Exact result of integer arithmetic of any size; None for other operations.

    Integers of up to 32 bits are computed in 64 bits, which are enough for every sum and product of
    two; longer integers, powers and long sums are computed as Python integers.
    """
    name = eqn.primitive.name
    if not all(np.issubdtype(x.dtype, np.integer) for x in inputs):
        return None
    is_long = any(x.dtype.itemsize > 4 for x in inputs)
    is_power = name in ("integer_pow", "square")
    wide = [x.astype(object if is_long or is_power else "int64") for x in inputs]
    row = TABLE.get(name)
    if row is not None and row.wraps and row.scalar is not None:
        return row.scalar(*wide)
    if name == "div":
        return divided_exactly(*wide)
    if is_power:
        return wide[0] ** int(eqn.params.get("y", 2))
    if name == "shift_left":
        bits = 8 * inputs[0].dtype.itemsize
        is_inside = (inputs[1] >= 0) & (inputs[1] < bits)  # beyond that, XLA returns 0
        return np.where(is_inside, wide[0] * 2 ** np.where(is_inside, wide[1], 0), 0)
    return _sum(eqn, wide) if name in SUMS else None


def floats(eqn: Any, inputs: Sequence[Any]) -> Any:
    """Sum of floats in float64; None for other operations."""
    if eqn.primitive.name not in SUMS:
        return None
    return _sum(eqn, [x.astype("float64") for x in inputs])


def _sum(eqn: Any, inputs: Sequence[Any]) -> Any:
    name, params = eqn.primitive.name, eqn.params
    if name == "reduce_sum":
        return np.sum(inputs[0], axis=tuple(params["axes"]))
    if name == "cumsum":
        axis = params["axis"]
        if params["reverse"]:
            return np.flip(np.cumsum(np.flip(inputs[0], axis), axis), axis)
        return np.cumsum(inputs[0], axis)
    return _product(eqn, inputs)


def _product(eqn: Any, inputs: Sequence[Any]) -> Any:
    """A `dot_general`: batch dimensions first, then the free ones of both operands."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    a, b = inputs
    if a.dtype == np.int64:
        most = np.abs(a).max(initial=0) * np.abs(b).max(initial=0) * terms(eqn)
        if most < 2**53:  # float64 represents each partial sum, and its product is much faster
            a, b = a.astype("float64"), b.astype("float64")
        elif most >= 2**62:
            a, b = a.astype(object), b.astype(object)
    free = [n for n in range(a.ndim) if n not in (*left, *left_batch)]
    others = [n for n in range(b.ndim) if n not in (*right, *right_batch)]
    shape = [a.shape[n] for n in (*left_batch, *free)] + [b.shape[n] for n in others]
    count = terms(eqn)
    batch = [a.shape[n] for n in left_batch]
    a = a.transpose(*left_batch, *free, *left).reshape(*batch, -1, count)
    b = b.transpose(*right_batch, *right, *others).reshape(*batch, count, -1)
    found = np.matmul(a, b).reshape(shape)
    if found.dtype == np.float64 and inputs[0].dtype == np.int64:
        return found.astype("int64")
    return found


# Values


def is_elementwise(inputs: Sequence[Any], result: Any) -> bool:
    return all(
        x.ndim in (0, result.ndim)
        and all(n in (1, m) for n, m in zip(x.shape, result.shape, strict=False))
        for x in inputs
    )


def is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def is_plus_infinity(value: Any) -> Any:
    return value.astype("float64") == np.inf


def is_minus_infinity(value: Any) -> Any:
    return value.astype("float64") == -np.inf


def is_not_finite(value: Any) -> Any:
    return ~np.isfinite(value.astype("float64"))


def is_bad(value: Any) -> Any:
    """Mask of NaN and plus infinity; minus infinity is considered a mask value."""
    wide = value.astype("float64")
    return np.isnan(wide) | (wide == np.inf)


def holds_bad(value: Any) -> bool:
    return is_float(value) and bool(is_bad(value).any())


def holds_infinity(value: Any) -> bool:
    return is_float(value) and bool(np.isinf(value.astype("float64")).any())


def spoilt(eqn: Any, inputs: Sequence[Any], result: Any, spoils: Callable[[Any], Any]) -> Any:
    """Elements of the result that have a bad operand."""
    marks = [spoils(x) for x in inputs if is_float(x)]
    if not any(mark.any() for mark in marks):
        return np.zeros(result.shape, bool)
    numbers = [x for x in inputs if is_float(x)]
    if eqn.primitive.name not in SUMS and is_elementwise(numbers, result):
        found = np.zeros(result.shape, bool)
        for mark in marks:
            found |= mark
        return found
    if eqn.primitive.name in SUMS and all(map(is_float, inputs)):
        found = np.zeros(result.shape, bool)
        for k in range(len(inputs)):
            given = [
                (spoils(x) if j == k else np.ones(x.shape)).astype("float32")
                for j, x in enumerate(inputs)
            ]
            counted = floats(eqn, given)
            found |= np.asarray(counted > 0) if counted is not None else True
        return found
    return np.ones(result.shape, bool)
