"""The first equation of a unit whose arithmetic goes wrong, with its facts.

`explain` evaluates the equations one by one on concrete values, and also computes exact results. A
wrong element is a fault only if something depends on it: the rest of the unit is evaluated again
with another value in its place, and if no output differs, it was masked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.instrument.primitives import MAKES_INFINITY, MAKES_NAN
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.primitive_rules import terms
from pallas_debug.bridge.primitives import SUMS
from pallas_debug.bridge.programs.arithmetic import exact, numerics, wrapping
from pallas_debug.bridge.programs.units import Unit
from pallas_debug.findings.facts import array_text
from pallas_debug.model import SourceLine

Trouble = Literal["nan", "infinity", "overflow", "division", "narrowing"]

Kind = Literal["nans", "integers"]
"""Kind of fault: NaNs and infinities, including those of casts, or everything else."""


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
      exact: the result without a limit of size or precision; None if there is none.
      result: the result of the operation.
      count: number of wrong elements.
      terms: number of terms of a sum.
      makes_nan: whether an output has a NaN because of this NaN or infinity.
      line: line in the user's code.
    """

    trouble: Trouble
    equation: int
    operation: str
    element: tuple[int, ...]
    values: tuple[int | float, ...]
    operands: tuple[str, ...]
    result_type: str
    result: int | float
    count: int
    exact: int | float | None = None
    ranges: tuple[tuple[float, float], ...] = ()
    terms: int | None = None
    makes_nan: bool = False
    line: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """Elements of a result that are wrong, whether or not anything depends on them.

    Attributes:
      exact: exact results, if there are any.
      instead: replacement for the elements, to see whether anything depends on them.
      opposite: for infinities, the negative ones that the operation also produced.
    """

    trouble: Trouble
    equation: int
    wrong: Any
    inputs: Sequence[Any]
    result: Any
    instead: Any
    exact: Any = None
    opposite: Any = False

    @property
    def kind(self) -> Kind:
        return "nans" if exact.is_float(self.result) else "integers"


def explain(
    unit: Unit, values: Sequence[Any], *, kind: Kind | None = None, but: Collection[int] = ()
) -> NumericFault | None:
    """Return the first fault in a unit on these inputs, or None if all wrong elements are masked.

    Args:
      values: inputs of the unit.
      kind: kind of fault to look for; any by default. A NaN that is cast to an integer has the kind
        "integers".
      but: equations whose faults are already known.
    """
    return _Evaluation(unit, values).first(kind, but)


def saturated(unit: Unit, values: Sequence[Any], equation: int | None) -> list[Any]:
    """Evaluate a unit equation by equation.

    Args:
      equation: number of an equation that saturates where it wraps around or loses bits.
    """
    return _Evaluation(unit, values).saturated(equation)


class _Evaluation:
    """A unit on concrete inputs."""

    def __init__(self, unit: Unit, values: Sequence[Any]) -> None:
        self._unit, self._eqns, self._values = unit, unit.eqns, values
        self._mixed = wrapping.bit_patterns(unit.eqns, unit.bits)

    def first(self, kind: Kind | None, but: Collection[int]) -> NumericFault | None:
        found: list[_Candidate] = []

        def note(i: int, inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
            found.extend(self._candidates(i, inputs, outputs))
            return outputs

        outputs = self._run(note)
        is_finite = not any(exact.holds_bad(x) for x in outputs)
        for candidate in found:
            if candidate.equation in but or kind not in (None, candidate.kind):
                continue
            if candidate.trouble not in ("nan", "infinity"):
                here = self._reaching(candidate, outputs)
            elif is_finite:
                continue
            else:
                here = self._spreading(candidate)
            if here is not None:
                return self._fault(candidate, here)
        return None

    def _run(self, visit: Callable[[int, Sequence[Any], list[Any]], list[Any]]) -> list[Any]:
        """Return the outputs of the unit; `visit` may replace the results of an equation."""
        known = nested.JaxprValues(self._unit.invars, map(_held, self._values))
        for i, eqn in enumerate(self._eqns):
            inputs = known.arrays(eqn.invars)
            outputs = [_held(x) for x in numerics.evaluated(eqn, inputs)]
            known.bind(eqn.outvars, visit(i, inputs, outputs))
        return known.arrays(self._unit.outvars)

    def saturated(self, equation: int | None) -> list[Any]:
        """Return the outputs if an equation saturated where it wraps around; see `saturated`."""

        def visit(i: int, inputs: Sequence[Any], made: list[Any]) -> list[Any]:
            if i != equation:
                return made
            for candidate in self._candidates(i, inputs, made):
                if candidate.trouble in ("overflow", "narrowing"):
                    made = [np.where(candidate.wrong, candidate.instead, made[0])]
            return made

        return self._run(visit)

    # Whether it matters

    def _reaching(self, candidate: _Candidate, outputs: Sequence[Any]) -> Any:
        """The wrong elements, up to the first, that change an output; None if there are none."""

        def differs(wrong: Any) -> bool:
            def visit(i: int, inputs: Sequence[Any], made: list[Any]) -> list[Any]:
                if i == candidate.equation:
                    return [np.where(wrong, candidate.instead, made[0])]
                return made

            return any(
                isinstance(x, np.ndarray) and x.tobytes() != y.tobytes()
                for x, y in zip(self._run(visit), outputs, strict=True)
            )

        return _smallest(candidate.wrong, differs)

    def _spreading(self, candidate: _Candidate) -> Any:
        """The part, up to the first, of which alone a NaN or infinity comes in an output."""
        sound = self._run(self._kept(candidate, np.zeros_like(candidate.wrong)))

        def spreads(wrong: Any) -> bool:
            return any(
                bool((exact.is_bad(x) & ~exact.is_bad(y)).any())
                for x, y in zip(self._run(self._kept(candidate, wrong)), sound, strict=True)
                if exact.is_float(x)
            )

        return _smallest(candidate.wrong, spreads)

    def makes_nan(self, candidate: _Candidate) -> bool:
        """Return whether an output has a NaN because of a NaN or infinity."""
        sound = self._run(self._kept(candidate, np.zeros_like(candidate.wrong)))
        return any(
            bool((np.isnan(x) & ~np.isnan(y)).any())
            for x, y in zip(self._run(self._kept(candidate, candidate.wrong)), sound, strict=True)
            if exact.is_float(x)
        )

    def _kept(
        self, candidate: _Candidate, wrong: Any
    ) -> Callable[[int, Sequence[Any], list[Any]], list[Any]]:
        """Visit that replaces each NaN and infinity where it arises, except for these elements."""

        def visit(i: int, inputs: Sequence[Any], made: list[Any]) -> list[Any]:
            for other in self._not_finite(i, inputs, made):
                replaced = other.wrong
                if i == candidate.equation:
                    replaced = replaced & ~wrong
                elif candidate.trouble == "infinity" and any(map(exact.holds_infinity, inputs)):
                    continue  # a NaN caused by the infinity
                made = [np.where(replaced | other.opposite, other.instead, made[0])]
            return made

        return visit

    # What is wrong

    def _candidates(
        self, i: int, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> list[_Candidate]:
        eqn = self._eqns[i]
        result = outputs[0] if outputs else np.zeros(0)
        if not result.size:
            return []
        found = self._not_finite(i, inputs, outputs)
        name = eqn.primitive.name
        if name == "convert_element_type":
            found += self._narrowed(i, inputs[0], result)
        elif name in ("div", "rem") and jnp.issubdtype(result.dtype, jnp.integer):
            found += self._divided(i, inputs, result)
        if numerics.is_signed(result) and i not in self._mixed:
            found += self._overflowed(i, inputs, result)
        return found

    def _not_finite(
        self, i: int, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> list[_Candidate]:
        """NaNs produced from numbers, and infinities produced from finite numbers."""
        eqn = self._eqns[i]
        if not outputs or not exact.is_float(outputs[0]):
            return []
        result, name = outputs[0], eqn.primitive.name
        kinds: list[tuple[Trouble, bool, Any, Any]] = [
            ("nan", name in MAKES_NAN, np.isnan, np.isnan),
            ("infinity", name in MAKES_INFINITY, exact.is_plus_infinity, exact.is_not_finite),
        ]
        found = []
        for trouble, is_made, is_bad, spoils in kinds:
            if not (is_made or name == "convert_element_type") or not is_bad(result).any():
                continue
            made = ~exact.spoilt(eqn, inputs, result, spoils)
            if name == "convert_element_type" and exact.is_float(inputs[0]):
                # The greatest number of a dtype, of either sign, is a mask.
                largest = float(jnp.finfo(inputs[0].dtype).max)
                made &= np.abs(inputs[0].astype("float64")) < largest
            wrong = is_bad(result) & made
            if wrong.any():
                found.append(
                    _Candidate(
                        trouble=trouble,
                        equation=i,
                        wrong=wrong,
                        inputs=inputs,
                        result=result,
                        instead=np.ones((), result.dtype),
                        opposite=made & exact.is_minus_infinity(result)
                        if trouble == "infinity"
                        else False,
                    )
                )
        return found

    def _overflowed(self, i: int, inputs: Sequence[Any], result: Any) -> list[_Candidate]:
        wanted = exact.integers(self._eqns[i], inputs)
        if wanted is None:
            return []
        limits = jnp.iinfo(result.dtype)
        wrong = np.asarray((wanted < int(limits.min)) | (wanted > int(limits.max)), bool)
        if self._eqns[i].primitive.name == "shift_left":
            wrong &= np.asarray(wanted >= 2 ** (8 * result.dtype.itemsize), bool)
        saturated = np.clip(wanted, int(limits.min), int(limits.max)).astype(result.dtype)
        return self._wrong("overflow", i, wrong, inputs, result, saturated, wanted)

    def _divided(self, i: int, inputs: Sequence[Any], result: Any) -> list[_Candidate]:
        wrong = np.broadcast_to(inputs[1] == 0, result.shape)
        return self._wrong("division", i, wrong, inputs, result, result ^ 1, None)

    def _narrowed(self, i: int, value: Any, result: Any) -> list[_Candidate]:
        source, target = value.dtype, result.dtype
        if not jnp.issubdtype(target, jnp.integer) or i in self._mixed:
            return []
        limits = jnp.iinfo(target)
        low, high = int(limits.min), int(limits.max)
        if exact.is_float(value):
            wide = np.trunc(value.astype("float64"))
            wrong = ~((wide >= low) & (wide < float(high) + 1))
            instead = np.clip(np.nan_to_num(wide), low, high)
            instead = np.where(instead >= high, high, instead.astype("int64")).astype(target)
            # A NaN may be saturated to zero: any other number shows whether it matters.
            instead = np.where(instead == result, result ^ 1, instead)
            return self._wrong("narrowing", i, wrong, [value], result, instead, value)
        if not numerics.is_signed(value) or target.itemsize >= source.itemsize:
            return []
        wrong = (value < low) | (value > high)
        return self._wrong(
            "narrowing", i, wrong, [value], result, np.clip(value, low, high).astype(target), value
        )

    def _wrong(
        self,
        trouble: Trouble,
        i: int,
        wrong: Any,
        inputs: Sequence[Any],
        result: Any,
        instead: Any,
        wanted: Any,
    ) -> list[_Candidate]:
        if not np.any(wrong):
            return []
        return [
            _Candidate(
                trouble=trouble,
                equation=i,
                wrong=np.asarray(wrong),
                inputs=inputs,
                result=result,
                instead=instead,
                exact=wanted,
            )
        ]

    def _fault(self, candidate: _Candidate, here: Any) -> NumericFault:
        eqn, result = self._eqns[candidate.equation], candidate.result
        name = eqn.primitive.name
        element = tuple(int(n) for n in np.argwhere(here)[-1])
        is_elementwise = exact.is_elementwise(candidate.inputs, result) and name not in SUMS
        wanted = None
        if candidate.exact is not None:
            wanted = _scalar(np.broadcast_to(candidate.exact, result.shape)[element])
        return NumericFault(
            trouble=candidate.trouble,
            equation=candidate.equation,
            operation=name,
            element=element,
            values=tuple(
                _scalar(np.broadcast_to(x, result.shape)[element]) for x in candidate.inputs
            )
            if is_elementwise
            else (),
            operands=tuple(_type(x) for x in candidate.inputs),
            result_type=_type(result),
            result=_scalar(result[element]),
            count=int(candidate.wrong.sum()),
            exact=wanted,
            ranges=() if is_elementwise else tuple(map(_range, candidate.inputs)),
            terms=terms(eqn) if name in SUMS else None,
            makes_nan=candidate.kind == "nans" and self.makes_nan(candidate),
            line=lines.source_of(eqn),
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


def _held(value: Any) -> Any:
    """Convert a value to a numpy array, except for keys, which numpy does not support."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return value
    return np.asarray(value)


def _scalar(value: Any) -> int | float:
    value = np.asarray(value)
    if value.dtype == object or jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == bool:
        return int(value)
    return float(value)


def _type(value: Any) -> str:
    return array_text(value.dtype.name, value.shape)


def _range(value: Any) -> tuple[float, float]:
    wide = value.astype("float64") if exact.is_float(value) else value
    numbers = wide[~np.isnan(wide)] if exact.is_float(value) else wide
    if not numbers.size:
        return float("nan"), float("nan")
    return _scalar(numbers.min()), _scalar(numbers.max())
