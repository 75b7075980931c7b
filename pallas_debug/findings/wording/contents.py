"""Wording of faults in a buffer's contents: uninitialised, padding, or wrong values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.findings.facts import GUARD
from pallas_debug.findings.facts import number as number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding

_NAN_CAUSES = {
    "sub": (
        "infinity minus infinity: often the maximum of a row that is fully masked with -inf",
        "mask with a large finite number, or replace the maximum where it is -inf",
    ),
    "add": (
        "infinity plus minus infinity",
        "find where the infinities come from, or mask with a large finite number",
    ),
    "div": (
        "0 / 0 or inf / inf: often a sum of weights that is zero for a fully masked row",
        GUARD,
    ),
    "mul": ("0 times infinity", "mask the infinite factor before the product, not after it"),
    "log": ("the logarithm of a negative number", "clamp the operand: jnp.maximum(x, 0)"),
    "sqrt": ("the square root of a negative number", "clamp the operand: jnp.maximum(x, 0)"),
    "rsqrt": ("the square root of a negative number", "add an epsilon under the root"),
    "dot_general": (
        "an infinity times zero, or infinities of both signs in one sum",
        "look for infinities in its operands; a weight of 0 does not cancel one",
    ),
}
_NO_VALUE = ("the operation has no finite value for these operands", "look at its operands")


def nan_produced(
    seen: Sighting,
    *,
    operation: str,
    values: Sequence[float],
    operands: Sequence[str],
    ranges: Sequence[tuple[float, float]] = (),
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report an operation that produces a NaN from operands without one.

    Args:
      values: operands at `element`, if they were recorded.
      operands: types of the operands.
      ranges: smallest and largest number of each operand, for an operation over many elements.
    """
    result = seen.witness.shape
    of, types = _values(values), f"operands {_types(operands, ranges)}, which contain none"
    if element is None:
        made = f"from {of or types}; result {result}"
    elif of:
        made = f"from {of} at {list(element)} of {result}"
    else:
        made = f"at {list(element)} of {result}, from {types}"
    cause, advice = _NAN_CAUSES.get(operation, _NO_VALUE)
    if operation == "div" and len(values) == 2:
        cause, advice = _NAN_DIVISIONS[values[1] == 0]
    message = f"`{operation}` produced a NaN {made}"
    found = seen.found(Fault.NAN_PRODUCED, message, cause, advice)
    return replace(found, comes_of=_origins(operation, values, ranges))


def _origins(
    operation: str, values: Sequence[float], ranges: Sequence[tuple[float, float]]
) -> tuple[Fault, ...]:
    """Return the faults that a NaN or infinity may follow from, based on the operands.

    Minus infinity is a mask, not a sign of an earlier fault.
    """
    kinds = []
    if operation in ("div", "rem") and len(values) == 2 and values[1] == 0:
        kinds.append(Fault.DIVISION_BY_ZERO)
    if math.inf in values or any(greatest == math.inf for _, greatest in ranges):
        kinds.append(Fault.INFINITY_PRODUCED)
    return tuple(kinds)


def _types(operands: Sequence[str], ranges: Sequence[tuple[float, float]]) -> str:
    if len(ranges) != len(operands):
        return ", ".join(operands)
    return " and ".join(
        f"{operand} of {number(least)} to {number(greatest)}"
        for operand, (least, greatest) in zip(operands, ranges, strict=True)
    )


def _values(values: Sequence[float]) -> str:
    return " and ".join(map(number, values))


_NAN_DIVISIONS = {
    True: (
        "0 / 0: often a sum of weights that is zero for a fully masked row",
        GUARD,
    ),
    False: (
        "infinity divided by infinity: an earlier operation overflowed, such as exp of a large "
        "number, or divided by zero",
        "find where the infinities come from; subtract the maximum before exp",
    ),
}

_EXPONENTIALS = ("exp", "exp2", "expm1")


def infinity_produced(
    seen: Sighting,
    *,
    operation: str,
    values: Sequence[float],
    operands: Sequence[str],
    ranges: Sequence[tuple[float, float]] = (),
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report an operation that produces an infinity from finite operands; see `nan_produced`."""
    of = _values(values) or f"operands {_types(operands, ranges)}"
    result = seen.witness.shape
    at = f" at {list(element)} of {result}" if element is not None else f"; result {result}"
    cause = "the result is larger than its dtype can hold"
    advice = "scale the operands"
    if operation in _EXPONENTIALS:
        advice = f"subtract the maximum before {operation}, or {advice}"
    if result is not None and not result.startswith(("float32", "float64")):
        advice += ", or use a wider dtype"
    is_by_zero = operation == "div" and len(values) == 2 and values[1] == 0
    if is_by_zero or (operation in ("rsqrt", "reciprocal", "log") and list(values) == [0]):
        cause, advice = "the operand is zero here", GUARD
    message = f"`{operation}` produced an infinity from {of}{at}"
    found = seen.found(Fault.INFINITY_PRODUCED, message, cause, advice)
    return replace(found, comes_of=_origins(operation, values, ranges))


def check_failed(
    seen: Sighting,
    *,
    message: str,
    condition: str | None = None,
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report a failed check of the kernel's author, with its own message.

    Args:
      condition: comparison that is false, with its values: `3 < 2`.
      element: element at which it is false, for arrays.
    """
    if condition is None:
        cause = "its condition is false, but is not a single comparison, so its values are unknown"
        advice = "check each comparison separately to see its values"
    else:
        at = f" at {list(element)}" if element is not None else ""
        cause = f"{condition} is false{at}"
        advice = "find out where these values come from, or correct the check"
        facts = {"condition": condition}
        if element is not None:
            facts["element"] = str(list(element))
        seen = seen.with_values(facts)
    return seen.found(Fault.CHECK_FAILED, message, cause, advice)
