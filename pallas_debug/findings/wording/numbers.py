"""Wording of numerical faults: integer overflow, lossy casts, imprecise sums, random bits, and
false hints to the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pallas_debug.findings.case import Words
from pallas_debug.findings.facts import GUARD, Point, line_text, listed, number, two_cores
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import of_axes
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, SourceLine

Element = tuple[int, ...]

_SUMS = ("reduce_sum", "cumsum", "dot_general")
_WIDER = {
    "dot_general": "accumulate in int32: preferred_element_type=jnp.int32",
    "reduce_sum": "accumulate in int32: jnp.sum(x, dtype=jnp.int32)",
    "cumsum": "accumulate in int32: jnp.cumsum(x.astype(jnp.int32))",
}


def integer_overflow(
    seen: Sighting,
    *,
    operation: str,
    dtype: str,
    values: Sequence[int],
    exact: int,
    result: int,
    element: Element = (),
    terms: int | None = None,
) -> Finding:
    """Report integer arithmetic whose exact result is outside the range of its dtype.

    Args:
      dtype: dtype of the result.
      values: operands at `element`; empty for a sum.
      exact: result in unlimited precision.
      result: actual result of the operation.
      terms: number of terms of a sum.
    """
    low, high = _range(dtype)
    of = f" of {_listed(values)}" if values else ""
    count = f" over {terms:,} terms" if terms is not None else ""
    at = _at(element)
    cause = f"{dtype} holds {low:,} to {high:,}, and values outside this range wrap around"
    if operation in _SUMS and high < 2**31 - 1:
        cause = f"the sum is accumulated in {dtype}, which holds {low:,} to {high:,}"
        advice = _WIDER[operation]
    elif operation in _SUMS:
        advice = "sum in float32, or in parts that fit the dtype"
    elif operation in ("neg", "abs", "div"):
        cause = f"{dtype} ranges from {low:,} to {high:,}: {low:,} has no positive counterpart"
        advice = f"exclude {low:,}: clip to {low + 1:,}, or use a wider dtype"
    elif high < 2**31 - 1:
        advice = "widen the operands first: x.astype(jnp.int32)"
    else:
        advice = (
            "keep the numbers small: index by row and column rather than by a flat offset; if "
            "wrapping is intended, as in a hash, compute in uint32"
        )
    facts = _facts(element, values) | {"exact": f"{exact}", "result": f"{result}"}
    return seen.with_values(facts).found(
        Fault.INTEGER_OVERFLOW,
        f"`{operation}`{of}{count} overflows {dtype}{at}: the exact result is {exact:,}, the "
        f"actual one {result:,}",
        cause,
        advice,
    )


def reaching(found: Finding) -> Finding:
    """Say that more than values depends on a wrapped number."""
    reaches = "an index, a size, a condition or a semaphore depends on it"
    return replace(found, message=f"{found.message}; {reaches}")


def division_by_zero(
    seen: Sighting,
    *,
    is_float: bool,
    is_remainder: bool,
    dividend: object | None,
    divisor: str,
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report a division by zero, with the `dividend` and the divisor's `element`, if recorded."""
    kind = "float" if is_float else "integer"
    what = "remainder" if is_remainder else "division"
    of = "" if dividend is None else f" of {number(dividend)}"
    at = f" at {list(element)}" if element is not None else ""
    return seen.found(
        Fault.DIVISION_BY_ZERO,
        f"{kind} {what}{of} by zero{at}; divisor {divisor}",
        "the divisor is zero; the result is undefined and differs between chips",
        GUARD,
    )


def narrowing_loss(
    seen: Sighting,
    *,
    source: str,
    target: str,
    value: float,
    result: float,
    element: Element = (),
) -> Finding:
    """Report a cast of `value` to a dtype that cannot represent it, and that gave `result`."""
    is_float, to_float = "float" in source, "float" in target
    if to_float:
        cause = f"the value is larger than the largest finite {target}"
        advice = "scale it first"
        if target == "float16":
            advice = "scale it first, or use bfloat16, which has the range of float32"
    else:
        low, high = _range(target)
        held = f"{target} holds {low:,} to {high:,}"
        clip = f"clip before the cast: jnp.clip(x, {low}, {high})"
        if high >= 2**31 - 1:
            clip = f"clip before the cast, or stay in {source}"
        if isinstance(value, float) and math.isnan(value):
            cause, advice = "integers have no NaN", "find where the NaN comes from, or replace it"
        elif is_float:
            cause = (
                f"{held}; the result of casting a float outside this range differs between chips"
            )
            advice = clip
        else:
            cause = f"{held}, and the cast drops the upper bits"
            advice = f"{clip}; if only the low bits are needed, select them with `x & mask`"
    facts = _facts(element, (value,)) | {"result": number(result)}
    return seen.with_values(facts).found(
        Fault.NARROWING_LOSS,
        f"the cast from {source} to {target} changes {_shown(value)}{_at(element)} to "
        f"{_shown(result)}",
        cause,
        advice,
    )


def low_precision_product(
    seen: Sighting,
    *,
    what: str,
    reference: str,
    differing: tuple[int, int],
    element: Element,
    values: tuple[str, str, str],
    error: str,
    allowed: str,
    lines: Sequence[SourceLine],
    cures: bool,
) -> Finding:
    """Report a result that is far off if products are rounded as on a TPU, and agrees otherwise.

    Args:
      what: output, with dtype and shape.
      reference: name of the reference.
      differing: number of differing elements, and of all elements.
      element: index of the first differing element.
      values: values of that element: with rounded products, without, and expected.
      error: largest error, with its element.
      allowed: the tolerance; empty if elements must be equal.
      lines: lines of the products, the witness's first.
      cures: whether the result agrees if only these products are exact.
    """
    count, total = differing
    is_single = len(lines) < 2
    products = "this product" if is_single else f"the products at {_lines(lines)}"
    rounded, exact, expected = values
    facts = {"element": str(list(element)), "value": rounded, "without rounding": exact}
    facts |= {"expected": expected, "largest absolute error": error}
    given = "it" if is_single else f"those at {_lines(lines)}"
    more = ": the result then agrees" if cures else ""
    return seen.with_values(facts).found(
        Fault.LOW_PRECISION_PRODUCT,
        f"{what}: {count:,} of {total:,} elements differ from `{reference}` if the float32 "
        f"operands of {products} are rounded to bfloat16, as on a TPU; first, "
        f"{list(element) or 'it'} is {rounded} with rounding, {exact} without, expected {expected};"
        f" largest error {error}, allowed {allowed or 'none, since these are not floats'}",
        f"{_ONE_PASS}; on a CPU the same product is exact to float32",
        f"{_HIGHEST.format(given)}{more}",
    )


_ONE_PASS = (
    "at default precision, the MXU multiplies float32 in one pass, rounded to bfloat16, which "
    "keeps 8 bits"
)
_HIGHEST = "pass precision=jax.lax.Precision.HIGHEST to {} (six passes instead of one)"


def _lines(lines: Sequence[SourceLine]) -> str:
    first = lines[0]
    return f"line{'s' if len(lines) > 1 else ''} " + listed(
        [str(line.line) if line.file == first.file else line_text(line) for line in lines]
    )


def unseeded(seen: Sighting, *, later: Point | None = None, is_elsewhere: bool = False) -> Finding:
    """Report random bits from an unseeded generator; `other` is the line that seeds it later.

    Args:
      later: grid point of the first seeding, if this core seeds it afterwards.
      is_elsewhere: whether other cores seed their generators.
    """
    kept = "it keeps the state of earlier programs"
    if later is not None:
        where = f", at grid point {later}" if later else ""
        cause = f"the generator is seeded only later{where}; until then {kept}"
    elif is_elsewhere:
        cause = f"other cores seed their generators, but nothing seeds this core's: {kept}"
    else:
        cause = f"nothing in the kernel seeds the generator: {kept}"
    return seen.found(
        Fault.UNSEEDED_RANDOM_BITS,
        "random bits are drawn before the generator is seeded: their values are undefined",
        cause,
        f"seed first, with a different number at each grid point: {_SEED_OF_POINT.format(0)}; "
        "prng_seed takes at most two numbers",
    )


def unseeded_lane(seen: Sighting, *, source: Point, axes: Sequence[int]) -> Finding:
    """Report random bits from a generator that only a grid point of another core may have seeded.

    Args:
      source: grid point that seeded the generator.
      axes: parallel grid axes along which the two grid points differ.
    """
    dimension = " and ".join(map(str, axes))
    return seen.with_values({"seeded at": str(source), **of_axes(axes)}).found(
        Fault.UNSEEDED_RANDOM_BITS,
        f"random bits are drawn at grid point {seen.witness.grid_point}, but the generator was "
        f"seeded at {source}: if another core runs that grid point, nothing has seeded this "
        "core's generator",
        f"{two_cores(dimension)}, and each core has its own generator",
        f"seed at each grid point: {_SEED_OF_POINT.format(axes[0])}; or make grid dimension "
        f'{dimension} "arbitrary"',
    )


_SEED = "pltpu.prng_seed(seed, {})"
_SEED_OF_POINT = _SEED.format("pl.program_id({})")


def _facts(element: Element, values: Sequence[float]) -> dict[str, str]:
    at = {"element": str(list(element))} if element else {}
    return at | {f"operand {i}": number(value) for i, value in enumerate(values)}


def _at(element: Element) -> str:
    return f" at {list(element)}" if element else ""


def _listed(values: Sequence[int]) -> str:
    return " and ".join(f"{value:,}" for value in values)


def _shown(value: float) -> str:
    return number(value) if isinstance(value, float) else f"{value:,}"


def _range(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype, by its name."""
    bits = int(dtype.lstrip("uint"))
    if dtype.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _bits(dtype: str) -> int:
    """Number of mantissa bits, including the implicit leading one."""
    if "m" in dtype:  # float8_e4m3fn
        return int(dtype.rpartition("m")[2][0]) + 1
    return {"bfloat16": 8, "float16": 11, "float32": 24}[dtype]


def false_hint(seen: Sighting, *, value: int, divisor: int, of_pipeline: bool = False) -> Finding:
    """Report a number that is not a multiple of the one that `pl.multiple_of` claims.

    Args:
      of_pipeline: whether jax's `emit_pipeline` claims it, for the size of a dynamic block.
    """
    if of_pipeline:
        wording = Words(
            f"a block of {value} rows or columns is not a multiple of {divisor}",
            "jax's pipeline tells the compiler that the sizes of a pl.BoundedSlice are multiples "
            f"of {divisor}, the tiling of the array in HBM",
            f"let the index map return slices whose sizes are multiples of {divisor}; jax rounds "
            "up only slices that reach past the array's end, jax 0.12 all of them",
        )
    else:
        wording = Words(
            f"{value} is not a multiple of {divisor}, although pl.multiple_of claims it is",
            "the compiler trusts pl.multiple_of, and reads or writes at the wrong place",
            f"make the value a multiple of {divisor}, or claim {math.gcd(value, divisor)}",
        )
    return seen.found(Fault.FALSE_HINT, *wording)


def false_assumption(
    seen: Sighting, *, assumption: Literal["no_store", "no_hazard_no_deps"], store: Sighting
) -> Finding:
    """Report a store to memory that contradicts an assumption in `pltpu.annotate`.

    Args:
      seen: sighting of the annotated access for `no_store`, otherwise of the load.
      store: sighting of the store.
    """
    name, shape = seen.witness.operand, seen.witness.shape
    seen = seen.at(other=store.witness.source)
    if assumption == "no_store":
        return seen.found(
            Fault.FALSE_HINT,
            f"{name}, {shape}, is stored to, although pltpu.annotate(…, no_store=True) says that "
            "it is not",
            "the compiler may repeat, after the store, a load that came before it",
            "remove no_store: it is for memory that only copies and the pipeline write to",
        )
    return seen.found(
        Fault.FALSE_HINT,
        f"{name}, {shape}, is read after a store to the same elements, although "
        "pltpu.annotate(…, no_hazard_no_deps=True) says that loads do not depend on stores",
        "the compiler may move this load before that store",
        "remove no_hazard_no_deps; no_hazard=True keeps the order",
    )
