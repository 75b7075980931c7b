"""Cases of numerical faults, and of false claims in a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallas_debug.findings.case import Case, Test, has
from pallas_debug.findings.facts import text_of
from pallas_debug.findings.faults import Fault

# Facts


@dataclass(frozen=True, kw_only=True)
class FloatOperation:
    """An operation that produced a NaN or infinity.

    Attributes:
      result: type of the result.
      values: operands at `element`; empty if they were not recorded, or if it depends on many.
      operands: types of the operands.
      ranges: smallest and largest number of each operand, if known.
    """

    name: str
    result: str
    values: Sequence[float]
    operands: Sequence[str]
    ranges: Sequence[tuple[float, float]] = ()
    element: Sequence[int] = ()

    def __str__(self) -> str:
        ranges = [f" of {text_of(low)} to {text_of(high)}" for low, high in self.ranges]
        types = map("".join, zip(self.operands, ranges or [""] * len(self.operands), strict=True))
        operands = " and ".join(map(text_of, self.values)) or f"operands {' and '.join(types)}"
        at = f" at {list(self.element)} of {self.result}" if self.element else ""
        return f"from {operands}{at or f'; result {self.result}'}"

    @property
    def divides_by_zero(self) -> bool:
        return self.name in ("div", "rem") and list(self.values[1:]) == [0]

    @property
    def is_of_zero(self) -> bool:
        is_singular = self.name in ("rsqrt", "reciprocal", "log")
        return self.divides_by_zero or (is_singular and list(self.values) == [0])


# Cases

_GUARD = "find out why it is zero; if it may be, guard against it: jnp.where(d == 0, 1, d)"
"""Advice about a zero that is a divisor, or the argument of a logarithm. A guard alone would hide
that the zero is wrong."""

_NAN = "`{operation.name}` produced a NaN {operation}"
_INFINITY = "`{operation.name}` produced an infinity {operation}"


def _is_of(*names: str) -> Test:
    return lambda facts: facts.operation.name in names


CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.NAN_PRODUCED: [
        Case(
            _NAN,
            "0 / 0: often a sum of weights that is zero for a fully masked row",
            _GUARD,
            lambda f: f.operation.divides_by_zero,
        ),
        Case(
            _NAN,
            "infinities cancel: often the maximum of a row that is fully masked with -inf",
            "mask with a large finite number, or replace the maximum where it is -inf",
            _is_of("sub", "add"),
        ),
        Case(
            _NAN,
            "0 times infinity, or infinities of both signs in one sum",
            "mask the infinite factor before the product, not after it",
            _is_of("mul", "dot_general"),
        ),
        Case(
            _NAN,
            "the operand is negative",
            "clamp it: jnp.maximum(x, 0)",
            _is_of("log", "sqrt", "rsqrt"),
        ),
        Case(_NAN),
    ],
    Fault.INFINITY_PRODUCED: [
        Case(_INFINITY, "the operand is zero here", _GUARD, lambda f: f.operation.is_of_zero),
        Case(_INFINITY, "the result is larger than its dtype can hold"),
    ],
    Fault.DIVISION_BY_ZERO: [
        Case(
            "{dtype} {operation}{dividend: of %} by zero{element: at %}; divisor {divisor}",
            "the divisor is zero{is_integer:; the result is undefined and differs between chips%}",
            _GUARD,
        )
    ],
    Fault.LOW_PRECISION_PRODUCT: [
        Case(
            "{count} of {total} elements of {what} differ from `{reference}` with operands rounded "
            "to bfloat16\nfirst, {element} is {rounded} with rounding, {exact} without, expected "
            "{expected}\nlargest error {error}, allowed {allowed}{products:\nproducts: %}",
            None,
            "pass precision=jax.lax.Precision.HIGHEST (six passes): the result then agrees",
        )
    ],
    Fault.UNSEEDED_RANDOM_BITS: [
        Case(
            "random bits are drawn from a generator that may be another core's\nseeded at grid "
            "point {seeded_at}",
            "grid dimension {axes} is parallel: two cores may share it, each with a generator",
            "seed at each grid point: pltpu.prng_seed(seed, pl.program_id({axis})); or make grid "
            'dimension {axes} "arbitrary"',
            has("seeded_at"),
        ),
        Case(
            "random bits are drawn before the generator of this core is seeded{later:\nseeded at "
            "grid point %}"
        ),
    ],
    Fault.CHECK_FAILED: [
        Case("{message}", "{condition} is false{element: at %}", when=has("condition")),
        Case("{message}"),
    ],
    Fault.FALSE_HINT: [
        Case(
            "a block of {value} rows or columns is not a multiple of {divisor}",
            "jax's pipeline claims that the sizes of a pl.BoundedSlice are multiples of {divisor}",
            "let the index map return slices whose sizes are multiples of {divisor}",
            has("of_pipeline"),
        ),
        Case(
            "{value} is not a multiple of {divisor}, although pl.multiple_of claims it is",
            "the compiler trusts pl.multiple_of, and reads or writes at the wrong place",
            "make the value a multiple of {divisor}, or remove the claim",
        ),
    ],
}
