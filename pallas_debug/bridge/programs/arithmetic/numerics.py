"""Straight-line equations with cheap tests for wrong arithmetic.

`instrumented` compiles a unit of equations together with a vector of flags. A flag is a suspicion:
the tests may be too strict, so that they stay cheap, and `numeric_faults.explain` decides.

- NaN and infinity are looked for in the unit's outputs alone. What a `where` discards reaches none
  of them. Minus infinity is a mask, and no suspicion.
- Integers are tested by equation, on signed integers alone: unsigned ones wrap on purpose, and so
  do signed ones that are hashed or packed, that is, consumed by operations on bits.
- A cast to a narrower integer is tested by equation, and a division of integers for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge.instrument.primitives import ARITHMETIC
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import likeness, nested
from pallas_debug.bridge.primitive_rules import terms
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import scalars, units
from pallas_debug.bridge.programs.arithmetic import wrapping

Flag = tuple[str, int]
"""A suspicion about an "output" or an "equation", by number."""


@dataclass(eq=False)
class WatchedUnit:
    """A unit that returns its outputs and a vector of flags.

    Attributes:
      eqns: equations in order, without calls.
      invars, outvars: variables of the inputs and outputs.
      bits: inputs that are bits, not numbers.
    """

    eqns: Sequence[Any]
    invars: Sequence[Any]
    outvars: Sequence[Any]
    bits: Collection[Any] = ()

    def __call__(self, *values: Any) -> tuple[Sequence[Any], Any]:
        """Return the outputs and the flags, a bool for each of `self.flags`."""
        return self.compiled(*values)

    @cached_property
    def flags(self) -> tuple[Flag, ...]:
        """Meaning of each flag. Empty if nothing in the unit can go wrong."""
        inputs = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in self.invars)
        jax.eval_shape(self.traced, *inputs)
        return self._found

    def run(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Flag]]:
        """Return the outputs and the suspicions."""
        outputs, flags = self.compiled(*values)
        if not self._found or not np.asarray(flags).any():
            return outputs, ()
        return outputs, [flag for flag, is_set in zip(self._found, flags, strict=True) if is_set]

    @cached_property
    def compiled(self) -> Callable[..., tuple[Sequence[Any], Any]]:
        """The unit as one program of jax."""
        program: Callable[..., tuple[Sequence[Any], Any]] = jax.jit(self.traced)
        return program

    def traced(self, *values: Any) -> tuple[list[Any], Any]:
        """Evaluate the unit on traced values; return the outputs and the flags."""
        known = nested.JaxprValues(self.invars, values)
        mixed = wrapping.bit_patterns(self.eqns, self.bits)
        tests: list[tuple[Flag, Any]] = []
        makers: set[Any] = set()
        for i, eqn in enumerate(self.eqns):
            inputs = known.read(eqn.invars)
            outputs = evaluated(eqn, inputs)
            known.bind(eqn.outvars, outputs)
            flag = suspicion(eqn, inputs, outputs, may_wrap=i in mixed)
            if flag is not None:
                tests.append((("equation", i), flag))
            if eqn.primitive.name in ARITHMETIC or not makers.isdisjoint(
                nested.variables(eqn.invars)
            ):
                makers.update(eqn.outvars)
        results = known.read(self.outvars)
        for k, (atom, result) in enumerate(zip(self.outvars, results, strict=True)):
            is_made = not isinstance(atom, jax_core.Literal) and atom in makers
            if is_made and jnp.size(result) and jnp.issubdtype(result.dtype, jnp.floating):
                # Not by the maximum, which may drop NaNs on a CPU: openxla/xla#21461.
                tests.append((("output", k), jnp.any(~(result < jnp.inf))))
        self._found = tuple(flag for flag, _ in tests)
        return results, jnp.array([test for _, test in tests], bool)


@dataclass(eq=False, frozen=True)
class WatchedScalars:
    """A unit on scalars, with the same interface."""

    unit: scalars.ScalarUnit
    mixed: frozenset[int]

    def run(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Flag]]:
        """Return the outputs and the suspicions."""
        outputs, wrong = self.unit.watched(values)
        return outputs, [("equation", i) for i in wrong if i not in self.mixed] if wrong else ()


def watch(step: ir.Compute) -> WatchedUnit | WatchedScalars:
    """Return the unit of a step with tests of its arithmetic, cached."""
    unit = step.unit
    if unit.watched is None:
        if isinstance(step.evaluate, scalars.ScalarUnit):
            unit.watched = WatchedScalars(
                step.evaluate, frozenset(wrapping.bit_patterns(unit.eqns, unit.bits))
            )
        else:
            unit.watched = _shared(unit)
    found: WatchedUnit | WatchedScalars = unit.watched
    return found


_instrumented: likeness.SharedPrograms[WatchedUnit] = likeness.SharedPrograms()


def _shared(unit: units.Unit) -> WatchedUnit:
    """Watched unit shared by all units that compute the same, because it is compiled."""
    given = unit.eqns, unit.invars, unit.outvars
    bits = tuple(variable in unit.bits for variable in unit.invars)
    return _instrumented.get(*given, lambda: instrumented(unit), bits)


def instrumented(unit: units.Unit) -> WatchedUnit:
    """Return a unit that tests its arithmetic."""
    return WatchedUnit(
        tuple(unit.eqns), tuple(unit.invars), tuple(unit.outvars), frozenset(unit.bits)
    )


def evaluated(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate an equation."""
    return list(units.bound(eqn, inputs))


def is_signed(value: Any) -> bool:
    """Return whether a value has a signed integer dtype."""
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.signedinteger))


def suspicion(eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, may_wrap: bool) -> Any:
    """Return a traced bool that is true if an equation may have gone wrong; None if it cannot.

    Args:
      may_wrap: whether its result or operands are bits, as `wrapping.bit_patterns` finds.
    """
    name, result = eqn.primitive.name, outputs[0] if outputs else None
    if result is None or not jnp.size(result):
        return None
    if name in ("div", "rem") and jnp.issubdtype(jnp.result_type(result), jnp.integer):
        return _division(eqn, inputs)
    if name == "convert_element_type":
        return None if may_wrap else _narrowing(inputs[0], result)
    if may_wrap or not is_signed(result):
        return None
    exact = _EXACT.get(name)
    return None if exact is None else exact(eqn, inputs, result)


def _division(eqn: Any, inputs: Sequence[Any]) -> Any:
    divisor = inputs[1]
    if isinstance(eqn.invars[1], jax_core.Literal) and divisor not in (0, -1):
        return None
    zero = jnp.any(divisor == 0)
    if eqn.primitive.name == "rem" or not is_signed(divisor):
        return zero
    least = np.array(jnp.iinfo(jnp.result_type(divisor)).min, jnp.result_type(divisor))
    return zero | jnp.any((inputs[0] == least) & (divisor == -1))


def _narrowing(value: Any, result: Any) -> Any:
    source, target = jnp.result_type(value), jnp.result_type(result)
    if not jnp.issubdtype(target, jnp.integer):
        return None  # an infinity is visible in the outputs
    limits = jnp.iinfo(target)
    if jnp.issubdtype(source, jnp.floating):
        value = value.astype("float32") if source.itemsize < 4 else value
        # Truncated towards zero: -128.9 is -128. NaN is in no range.
        inside = (value > float(limits.min) - 1) & (value < float(limits.max) + 1)
        if target.itemsize >= 4 and limits.min < 0:  # -2**31 - 1 is -2**31 in float32
            inside = (value >= float(limits.min)) & (value < float(limits.max))
        return ~jnp.all(inside)
    if not jnp.issubdtype(source, jnp.signedinteger) or target.itemsize >= source.itemsize:
        return None
    return jnp.any(result.astype(source) != value)


def _wide(value: Any) -> Any:
    return jnp.asarray(value).astype("float32")


def _narrow(result: Any) -> bool:
    return bool(jnp.result_type(result).itemsize < 4)


def _differs(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    """Return whether the value is different in int32."""
    wide = [jnp.asarray(x).astype("int32") for x in inputs]
    if "preferred_element_type" in eqn.params:
        eqn = eqn.replace(params={**eqn.params, "preferred_element_type": np.dtype("int32")})
    return jnp.any(evaluated(eqn, wide)[0] != result.astype("int32"))


def _limit(result: Any) -> float:
    """Magnitude above which a number computed in float32 may not fit."""
    return float(jnp.iinfo(jnp.result_type(result)).max) * (1 - 2.0**-16)


def _add(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    a, b = inputs
    if _narrow(result):
        return _differs(eqn, inputs, result)
    return jnp.any(((a ^ result) & (b ^ result)) < 0)


def _sub(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    a, b = inputs
    if _narrow(result):
        return _differs(eqn, inputs, result)
    return jnp.any(((a ^ b) & (a ^ result)) < 0)


def _mul(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    if _narrow(result):
        return _differs(eqn, inputs, result)
    return jnp.any(jnp.abs(_wide(inputs[0]) * _wide(inputs[1])) >= _limit(result))


def _lowest(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    dtype = jnp.result_type(result)
    return jnp.any(inputs[0] == np.array(jnp.iinfo(dtype).min, dtype))


def _power(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    power = eqn.params.get("y", 2)
    return jnp.any(jnp.abs(_wide(inputs[0])) ** power >= _limit(result))


def _shifted(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    value, bits = inputs
    # Setting the sign bit loses no bits: a mask, or a word to be packed.
    back = lax.shift_right_logical(result, bits)
    return jnp.any((value > 0) & (back != value))


def _summed(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    if _narrow(result):
        return _differs(eqn, inputs, result)
    axes = eqn.params["axes"] if "axes" in eqn.params else (eqn.params["axis"],)
    return jnp.any(jnp.sum(jnp.abs(_wide(inputs[0])), axes) >= _limit(result))


def _cumulated(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    sums = jnp.sum(jnp.abs(_wide(inputs[0])), eqn.params["axis"])
    return jnp.any(sums >= _limit(result))


def _contracted(eqn: Any, inputs: Sequence[Any], result: Any) -> Any:
    a, b = inputs
    if _narrow(result):
        return _differs(eqn, inputs, result)
    largest = [jnp.max(jnp.abs(_wide(x))) for x in (a, b)]
    return largest[0] * largest[1] * terms(eqn) >= _limit(result)


_EXACT: dict[str, Callable[[Any, Sequence[Any], Any], Any]] = {
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "mul": _mul,
    "neg": _lowest,
    "abs": _lowest,
    "square": _power,
    "integer_pow": _power,
    "shift_left": _shifted,
    "reduce_sum": _summed,
    "cumsum": _cumulated,
    "dot_general": _contracted,
}
