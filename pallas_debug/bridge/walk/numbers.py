"""Scalar equations of a jaxpr in numpy, over all grid points at once.

A value is an array that broadcasts against the grid: a value that depends on a single grid
dimension has a single dimension other than 1, however large the grid is. Values that cannot be
computed are None, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_ELEMENTS = 1 << 25
"""Maximum elements of one value; larger values are not computed."""


def compute(eqn: Any, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute the only output of a scalar equation; None without a rule, or if it is too large.

    Overflows as in XLA: call it within `np.errstate(all="ignore")`.
    """
    rule = _RULES.get(eqn.primitive.name)
    if rule is None or len(eqn.outvars) != 1:
        return None
    out = eqn.outvars[0].aval
    if getattr(out, "shape", None) != () or not is_number(out) or too_large(*inputs):
        return None
    value: np.ndarray = np.asarray(rule(eqn, *inputs)).astype(out.dtype, copy=False)
    return value


def is_number(aval: Any) -> bool:
    """Return whether numpy has this dtype, unlike jax's own (keys, semaphores) and small floats."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def too_large(*values: np.ndarray) -> bool:
    """Return whether the broadcast result has too many elements."""
    if all(value.size == 1 for value in values):
        return False
    size = 1
    for dim in np.broadcast_shapes(*(value.shape for value in values)):
        size *= dim
    return size > MAX_ELEMENTS


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide like XLA: towards zero, and with all bits set for a zero divisor."""
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    safe = np.where(b == 0, 1, b)
    # Floor division: a negative quotient with a remainder is one too small.
    quotient = a // safe
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, np.full_like(a, -1), quotient + inexact)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(np.fmod(a, b))
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b)))


def _logical_shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    unsigned = f"u{a.dtype.itemsize}"
    return np.asarray((a.astype(unsigned) >> b.astype(unsigned)).astype(a.dtype))


def _selected(_: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    result = cases[0]
    for i, case in enumerate(cases[1:], 1):
        result = np.where(which == i, case, result)
    return result


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *inputs: function(*inputs)


def _not(_: Any, value: np.ndarray) -> np.ndarray:
    return np.asarray(np.logical_not(value) if value.dtype == bool else np.invert(value))


_PLAIN: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "div": _divided,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": _logical_shift,
}
"""Primitives that depend only on their operands."""

_RULES: dict[str, Callable[..., Any]] = {
    **{name: _plain(function) for name, function in _PLAIN.items()},
    "not": _not,
    "select_n": _selected,
    "square": lambda _, x: x * x,
    "integer_pow": lambda eqn, x: x ** eqn.params["y"] if eqn.params["y"] >= 0 else 1 / x,
    "clamp": lambda _, low, x, high: np.minimum(np.maximum(x, low), high),
    # Identity on a scalar, except for the dtype of the output.
    **dict.fromkeys(
        [
            *("convert_element_type", "multiple_of", "copy", "copy_p", "stop_gradient", "reshape"),
            *("broadcast_in_dim", "squeeze", "expand_dims", "add_dependency"),
        ],
        lambda _, value, *__: value,
    ),
}
