"""The first equation of a unit whose arithmetic goes wrong, with its facts.

The equations are evaluated one by one on concrete values. A wrong element is a fault only if
something depends on it: the rest of the unit is evaluated again with another value in its place,
and if no output differs, it was masked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.primitives import MAKES_INFINITY, MAKES_NAN, SUMS
from pallas_debug.bridge.programs import numerics, units
from pallas_debug.bridge.programs.units import Unit
from pallas_debug.findings.facts import array_text

Trouble = Literal["nan", "infinity", "division"]

Visit = Callable[[int, Sequence[Any], list[Any]], list[Any]]
"""Called with the number, operands and results of an equation; may return other results."""


@dataclass(frozen=True, kw_only=True)
class NumericFault:
    """Facts about arithmetic that went wrong.

    Attributes:
      equation: number of the equation in its unit.
      operation: primitive of the equation.
      element: index of the first wrong element of the result.
      values: operands at that element; empty if each element is computed from many.
      operands, result_type: types, such as `float32[8, 128]`.
      ranges: smallest and largest number of each operand, if `values` is empty.
      makes_nan: whether an output has a NaN because of this NaN or infinity.
    """

    trouble: Trouble
    equation: int
    operation: str
    element: tuple[int, ...]
    values: tuple[int | float, ...]
    operands: tuple[str, ...]
    result_type: str
    ranges: tuple[tuple[float, float], ...] = ()
    makes_nan: bool = False


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """Elements of a result that are wrong, whether or not anything depends on them.

    Attributes:
      opposite: for infinities, the negative ones that the operation also produced.
    """

    trouble: Trouble
    equation: int
    wrong: Any
    inputs: Sequence[Any]
    result: Any
    opposite: Any = False


def not_finite(unit: Unit, values: Sequence[Any]) -> NumericFault | None:
    """Return the first operation whose NaN or infinity reaches an output, if any does."""
    found: list[_Candidate] = []

    def note(i: int, inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
        found.extend(_not_finite(unit, i, inputs, outputs))
        return outputs

    if not any(_holds(output, _is_bad) for output in _run(unit, values, note)):
        return None
    for candidate in found:
        fault = _spreading(unit, values, candidate)
        if fault is not None:
            return fault
    return None


def _spreading(unit: Unit, values: Sequence[Any], candidate: _Candidate) -> NumericFault | None:
    """The fault, if a NaN or infinity comes in an output of these elements alone."""
    sound = _run(unit, values, _kept(unit, candidate, np.zeros_like(candidate.wrong)))

    def spreads(wrong: Any, is_bad: Callable[[Any], Any] = _is_bad) -> bool:
        return any(
            bool((is_bad(x) & ~is_bad(y)).any())
            for x, y in zip(_run(unit, values, _kept(unit, candidate, wrong)), sound, strict=True)
            if _is_float(x)
        )

    here = _smallest(candidate.wrong, spreads)
    if here is None:
        return None
    return _fault(unit, candidate, here, makes_nan=spreads(candidate.wrong, np.isnan))


def division_by_zero(
    unit: Unit, values: Sequence[Any], known: Collection[int] = ()
) -> NumericFault | None:
    """Return the first division of integers by zero on which an output depends; None without one.

    Args:
      known: equations to leave out.
    """
    found: list[_Candidate] = []

    def note(i: int, inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
        if i not in known and numerics.divides_integers(unit.eqns[i]):
            (result,) = outputs
            wrong = np.broadcast_to(inputs[1] == 0, result.shape)
            if wrong.any():
                found.append(
                    _Candidate(
                        trouble="division", equation=i, wrong=wrong, inputs=inputs, result=result
                    )
                )
        return outputs

    outputs = _run(unit, values, note)
    for candidate in found:
        fault = _deciding(unit, values, candidate, outputs)
        if fault is not None:
            return fault
    return None


def _deciding(
    unit: Unit, values: Sequence[Any], candidate: _Candidate, outputs: Sequence[Any]
) -> NumericFault | None:
    """The fault, if an output changes with the quotient."""

    def differs(wrong: Any) -> bool:
        def visit(i: int, inputs: Sequence[Any], made: list[Any]) -> list[Any]:
            if i == candidate.equation:
                return [np.where(wrong, made[0] ^ 1, made[0])]
            return made

        return any(
            isinstance(x, np.ndarray) and x.tobytes() != y.tobytes()
            for x, y in zip(_run(unit, values, visit), outputs, strict=True)
        )

    here = _smallest(candidate.wrong, differs)
    return None if here is None else _fault(unit, candidate, here)


def _run(unit: Unit, values: Sequence[Any], visit: Visit) -> list[Any]:
    """Evaluate the equations one by one; return the outputs of the unit."""
    known = nested.JaxprValues(unit.invars, map(_held, values))
    for i, eqn in enumerate(unit.eqns):
        inputs = known.arrays(eqn.invars)
        outputs = [_held(x) for x in units.bound(eqn, inputs)]
        known.bind(eqn.outvars, visit(i, inputs, outputs))
    return known.arrays(unit.outvars)


def _kept(unit: Unit, candidate: _Candidate, wrong: Any) -> Visit:
    """Visit that replaces each NaN and infinity where it arises, except for these elements."""

    def visit(i: int, inputs: Sequence[Any], made: list[Any]) -> list[Any]:
        for other in _not_finite(unit, i, inputs, made):
            replaced = other.wrong
            if i == candidate.equation:
                replaced = replaced & ~wrong
            elif candidate.trouble == "infinity" and any(_holds(x, _is_infinite) for x in inputs):
                continue  # a NaN caused by the infinity
            made = [np.where(replaced | other.opposite, np.ones((), made[0].dtype), made[0])]
        return made

    return visit


def _not_finite(
    unit: Unit, i: int, inputs: Sequence[Any], outputs: Sequence[Any]
) -> list[_Candidate]:
    """NaNs produced from numbers, and infinities produced from finite numbers."""
    eqn = unit.eqns[i]
    if not outputs or not _is_float(outputs[0]) or not outputs[0].size:
        return []
    result, name = outputs[0], eqn.primitive.name
    kinds: list[tuple[Trouble, bool, Any, Any]] = [
        ("nan", name in MAKES_NAN, np.isnan, np.isnan),
        ("infinity", name in MAKES_INFINITY, _is_plus_infinity, _is_not_finite),
    ]
    found = []
    for trouble, is_made, is_bad, spoils in kinds:
        if not (is_made or name == "convert_element_type") or not is_bad(result).any():
            continue
        made = ~_spoilt(eqn, inputs, result, spoils)
        if name == "convert_element_type" and _is_float(inputs[0]):
            # The greatest number of a dtype, of either sign, is a mask.
            largest = float(jnp.finfo(inputs[0].dtype).max)
            made &= np.abs(inputs[0].astype("float64")) < largest
        wrong = is_bad(result) & made
        if wrong.any():
            opposite = made & (_wide(result) == -np.inf) if trouble == "infinity" else False
            found.append(
                _Candidate(
                    trouble=trouble,
                    equation=i,
                    wrong=wrong,
                    inputs=inputs,
                    result=result,
                    opposite=opposite,
                )
            )
    return found


def _spoilt(eqn: Any, inputs: Sequence[Any], result: Any, spoils: Callable[[Any], Any]) -> Any:
    """Elements of the result that have a bad operand."""
    numbers = [x for x in inputs if _is_float(x)]
    marks = list(map(spoils, numbers))
    found = np.zeros(result.shape, bool)
    if not any(mark.any() for mark in marks):
        return found
    if eqn.primitive.name in SUMS and len(numbers) == len(inputs):
        for k, mark in enumerate(marks):
            given = [mark if j == k else np.ones(x.shape) for j, x in enumerate(numbers)]
            typed = [one.astype(x.dtype) for one, x in zip(given, numbers, strict=True)]
            found |= np.asarray(units.bound(eqn, typed)[0]) != 0
        return found
    if eqn.primitive.name in SUMS or not _is_elementwise(numbers, result):
        return ~found
    for mark in marks:
        found |= mark
    return found


def _fault(
    unit: Unit, candidate: _Candidate, here: Any, *, makes_nan: bool = False
) -> NumericFault:
    name, result = unit.eqns[candidate.equation].primitive.name, candidate.result
    element = tuple(int(n) for n in np.argwhere(here)[-1])
    is_elementwise = name not in SUMS and _is_elementwise(candidate.inputs, result)
    values = (
        _scalar(np.broadcast_to(x, result.shape)[element])
        for x in (candidate.inputs if is_elementwise else ())
    )
    return NumericFault(
        trouble=candidate.trouble,
        equation=candidate.equation,
        operation=name,
        element=element,
        values=tuple(values),
        operands=tuple(_type(x) for x in candidate.inputs),
        result_type=_type(result),
        ranges=() if is_elementwise else tuple(map(_range, candidate.inputs)),
        makes_nan=makes_nan,
    )


def _smallest(wrong: Any, matters: Callable[[Any], bool]) -> Any:
    """The shortest beginning of the wrong elements that matters; None if all of them do not."""
    if not matters(wrong):
        return None
    places = np.argwhere(wrong)

    def beginning(count: int) -> Any:
        found = np.zeros_like(wrong)
        found[tuple(places[:count].T)] = True
        return found

    low, high = 0, len(places)  # `low` of them do not matter, `high` do
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if matters(beginning(middle)) else (middle, high)
    return beginning(high)


# Values


def _held(value: Any) -> Any:
    """Convert a value to a numpy array, except for keys, which numpy does not support."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    return np.asarray(value)


def _is_elementwise(inputs: Sequence[Any], result: Any) -> bool:
    return all(
        x.ndim in (0, result.ndim)
        and all(n in (1, m) for n, m in zip(x.shape, result.shape, strict=False))
        for x in inputs
    )


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def _wide(value: Any) -> Any:
    return value.astype("float64")


def _is_plus_infinity(value: Any) -> Any:
    return _wide(value) == np.inf


def _is_infinite(value: Any) -> Any:
    return np.isinf(_wide(value))


def _is_not_finite(value: Any) -> Any:
    return ~np.isfinite(_wide(value))


def _is_bad(value: Any) -> Any:
    """Mask of NaN and plus infinity; minus infinity is considered a mask value."""
    return np.isnan(_wide(value)) | _is_plus_infinity(value)


def _holds(value: Any, is_bad: Callable[[Any], Any]) -> bool:
    return _is_float(value) and bool(is_bad(value).any())


def _scalar(value: Any) -> int | float:
    value = np.asarray(value)
    if jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == bool:
        return int(value)
    return float(value)


def _type(value: Any) -> str:
    return array_text(value.dtype.name, value.shape)


def _range(value: Any) -> tuple[float, float]:
    numbers = value
    if _is_float(value):
        wide = _wide(value)
        numbers = wide[~np.isnan(wide)]
    if not numbers.size:
        return float("nan"), float("nan")
    return _scalar(numbers.min()), _scalar(numbers.max())
