"""Cases of numerical faults, and of false claims in a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallas_debug.findings.case import Case, Facts, Test, both, has, is_
from pallas_debug.findings.facts import line_text, listed, text_of
from pallas_debug.findings.faults import Fault
from pallas_debug.model import SourceLine

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
    def is_narrow(self) -> bool:
        return not self.result.startswith(("float32", "float64"))

    @property
    def divides_by_zero(self) -> bool:
        return self.name in ("div", "rem") and list(self.values[1:]) == [0]

    @property
    def is_of_zero(self) -> bool:
        is_singular = self.name in ("rsqrt", "reciprocal", "log")
        return self.divides_by_zero or (is_singular and list(self.values) == [0])


class Range(NamedTuple):
    """Smallest and largest number of an integer dtype."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low:,} to {self.high:,}"

    @classmethod
    def of(cls, dtype: str) -> Range:
        bits = int(dtype.lstrip("uint"))
        if dtype.startswith("u"):
            return cls(0, 2**bits - 1)
        return cls(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@dataclass(frozen=True)
class Products:
    """Lines of matrix products."""

    lines: Sequence[SourceLine]

    def __str__(self) -> str:
        return "this product" if len(self.lines) < 2 else f"the products at {self._places}"

    @property
    def given(self) -> str:
        return "it" if len(self.lines) < 2 else f"those at {self._places}"

    @property
    def _places(self) -> str:
        file = self.lines[0].file
        places = [str(at.line) if at.file == file else line_text(at) for at in self.lines]
        return f"lines {listed(places)}"


# Cases

_GUARD = (
    "find out why it is zero; if zero is valid, as for a row without entries, guard against it: "
    "jnp.where(d == 0, 1, d)"
)
"""Advice about a zero that is a divisor, or the argument of a logarithm. A guard alone would hide
that the zero is wrong."""

_NEGATIVE_ROOT = "the square root of a negative number"

_NANS = {
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
        _GUARD,
    ),
    "mul": ("0 times infinity", "mask the infinite factor before the product, not after it"),
    "log": ("the logarithm of a negative number", "clamp the operand: jnp.maximum(x, 0)"),
    "sqrt": (_NEGATIVE_ROOT, "clamp the operand: jnp.maximum(x, 0)"),
    "rsqrt": (_NEGATIVE_ROOT, "add an epsilon under the root"),
    "dot_general": (
        "an infinity times zero, or infinities of both signs in one sum",
        "look for infinities in its operands; a weight of 0 does not cancel one",
    ),
}
"""Cause and advice by operation."""

_NAN = "`{operation.name}` produced a NaN {operation}"
_INFINITY = "`{operation.name}` produced an infinity {operation}"
_LARGE = "the result is larger than its dtype can hold"
_SCALE = "scale the operands{operation.is_narrow:, or use a wider dtype%}"


def _is_of(name: str) -> Test:
    return lambda facts: facts.operation.name == name


_REACHES = "{reaches:; an index, a size, a condition or a semaphore depends on it%}"
_SUMS = {
    "dot_general": "accumulate in int32: preferred_element_type=jnp.int32",
    "reduce_sum": "accumulate in int32: jnp.sum(x, dtype=jnp.int32)",
    "cumsum": "accumulate in int32: jnp.cumsum(x.astype(jnp.int32))",
}
"""Advice by operation."""


def _is_narrow(facts: Facts) -> object:
    return facts.range.high < 2**31 - 1


_OVERFLOW = (
    "`{operation}`{values: of %}{terms: over % terms} overflows {dtype}{element: at %}: the exact "
    f"result is {{exact}}, the actual one {{result}}{_REACHES}"
)
_WRAPS = "{dtype} holds {range}, and values outside this range wrap around"

_HOLDS = "{new} holds {range}"
_CLIP = "clip before the cast: jnp.clip(x, {range.low:d}, {range.high:d})"
_OR_STAY = "clip before the cast, or stay in {old}"
_OF_FLOAT = f"{_HOLDS}; the result of casting a float outside this range differs between chips"
_OF_INTEGER = f"{_HOLDS}, and the cast drops the upper bits"
_LOW_BITS = "; if only the low bits are needed, select them with `x & mask`"


def _is_of_float(facts: Facts) -> bool:
    return "float" in facts.old


_UNSEEDED = "random bits are drawn before the generator is seeded: their values are undefined"
_KEPT = "it keeps the state of earlier programs"
_SEED = (
    "seed first, with a different number at each grid point: pltpu.prng_seed(seed, "
    "pl.program_id(0)); prng_seed takes at most two numbers"
)


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
            "infinity divided by infinity: an earlier operation overflowed, such as exp of a "
            "large number, or divided by zero",
            "find where the infinities come from; subtract the maximum before exp",
            lambda f: f.operation.name == "div" and f.operation.values,
        ),
        *(Case(_NAN, *texts, _is_of(name)) for name, texts in _NANS.items()),
        Case(_NAN, "the operation has no finite value for these operands", "look at its operands"),
    ],
    Fault.INFINITY_PRODUCED: [
        Case(_INFINITY, "the operand is zero here", _GUARD, lambda f: f.operation.is_of_zero),
        Case(
            _INFINITY,
            _LARGE,
            f"subtract the maximum before {{operation.name}}, or {_SCALE}",
            lambda f: f.operation.name in ("exp", "exp2", "expm1"),
        ),
        Case(_INFINITY, _LARGE, _SCALE),
    ],
    Fault.INTEGER_OVERFLOW: [
        *(
            Case(
                _OVERFLOW,
                "the sum is accumulated in {dtype}, which holds {range}",
                advice,
                both(is_("operation", name), _is_narrow),
            )
            for name, advice in _SUMS.items()
        ),
        Case(
            _OVERFLOW,
            _WRAPS,
            "sum in float32, or in parts that fit the dtype",
            lambda f: f.operation in _SUMS,
        ),
        Case(
            _OVERFLOW,
            "{dtype} ranges from {range}: {range.low} has no positive counterpart",
            "exclude it: jnp.maximum(x, {range.low:d} + 1), or use a wider dtype",
            lambda f: f.operation in ("neg", "abs", "div"),
        ),
        Case(_OVERFLOW, _WRAPS, "widen the operands first: x.astype(jnp.int32)", _is_narrow),
        Case(
            _OVERFLOW,
            _WRAPS,
            "keep the numbers small: index by row and column rather than by a flat offset; if "
            "wrapping is intended, as in a hash, compute in uint32",
        ),
    ],
    Fault.DIVISION_BY_ZERO: [
        Case(
            "{dtype} {operation}{dividend: of %} by zero{element: at %}; divisor {divisor}",
            "the divisor is zero{is_integer:; the result is undefined and differs between chips%}",
            _GUARD,
        )
    ],
    Fault.NARROWING_LOSS: [
        Case(
            "the cast from {old} to {new} changes {value}{element: at %} to {result}" + _REACHES,
            cause,
            advice,
            when,
        )
        for cause, advice, when in (
            (
                "integers have no NaN",
                "find where the NaN comes from, or replace it",
                lambda f: math.isnan(f.value),
            ),
            (_OF_FLOAT, _CLIP, both(_is_of_float, _is_narrow)),
            (_OF_FLOAT, _OR_STAY, _is_of_float),
            (_OF_INTEGER, _CLIP + _LOW_BITS, _is_narrow),
            (_OF_INTEGER, _OR_STAY + _LOW_BITS, None),
        )
    ],
    Fault.LOW_PRECISION_PRODUCT: [
        Case(
            "{what}: {count} of {total} elements differ from `{reference}` if the float32 operands "
            "of {products} are rounded to bfloat16, as on a TPU; first, {element} is {rounded} "
            "with rounding, {exact} without, expected {expected}; largest error {error}, allowed "
            "{allowed}",
            "at default precision, the MXU multiplies float32 in one pass, rounded to bfloat16, "
            "which keeps 8 bits; on a CPU the same product is exact to float32",
            "pass precision=jax.lax.Precision.HIGHEST to {products.given} (six passes instead of "
            "one): the result then agrees",
        )
    ],
    Fault.UNSEEDED_RANDOM_BITS: [
        Case(
            "random bits are drawn at grid point {grid_point}, but the generator was seeded at "
            "{seeded_at}: if another core runs that grid point, nothing has seeded this core's "
            "generator",
            "{two_cores}, and each core has its own generator",
            "seed at each grid point: pltpu.prng_seed(seed, pl.program_id({axis})); or make grid "
            'dimension {axes} "arbitrary"',
            has("seeded_at"),
        ),
        Case(
            _UNSEEDED,
            f"the generator is seeded only later{{later:, at grid point %}}; until then {_KEPT}",
            _SEED,
            lambda f: f.later is not None,
        ),
        Case(
            _UNSEEDED,
            f"other cores seed their generators, but nothing seeds this core's: {_KEPT}",
            _SEED,
            has("other_cores"),
        ),
        Case(_UNSEEDED, f"nothing in the kernel seeds the generator: {_KEPT}", _SEED),
    ],
    Fault.CHECK_FAILED: [
        Case(
            "{message}",
            "{condition} is false{element: at %}",
            "find out where these values come from, or correct the check",
            has("condition"),
        ),
        Case(
            "{message}",
            "its condition is false; the values that it was computed from are unknown",
            "check each comparison separately: the kernel machine shows the values of a single one",
        ),
    ],
    Fault.FALSE_HINT: [
        Case(
            "a block of {value} rows or columns is not a multiple of {divisor}",
            "jax's pipeline tells the compiler that the sizes of a pl.BoundedSlice are multiples "
            "of {divisor}, the tiling of the array in HBM",
            "let the index map return slices whose sizes are multiples of {divisor}; jax rounds "
            "up only slices that reach past the array's end, jax 0.12 all of them",
            has("of_pipeline"),
        ),
        Case(
            "{operand}, {shape}, is stored to, although pltpu.annotate(…, no_store=True) says that "
            "it is not",
            "the compiler may repeat, after the store, a load that came before it",
            "remove no_store: it is for memory that only copies and the pipeline write to",
            is_("assumption", "no_store"),
        ),
        Case(
            "{operand}, {shape}, is read after a store to the same elements, although "
            "pltpu.annotate(…, no_hazard_no_deps=True) says that loads do not depend on stores",
            "the compiler may move this load before that store",
            "remove no_hazard_no_deps; no_hazard=True keeps the order",
            has("assumption"),
        ),
        Case(
            "{value} is not a multiple of {divisor}, although pl.multiple_of claims it is",
            "the compiler trusts pl.multiple_of, and reads or writes at the wrong place",
            "make the value a multiple of {divisor}, or claim {gcd}",
        ),
    ],
}
