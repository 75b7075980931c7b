"""Advice: all pairs of rows are multiplied elementwise and summed, without a loop."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.program import MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.products.vector_product import LOADING, PASSES, TILE
from pallas_debug.profile.advice.subject import AdviceSubject, Place, PlacedInstruction

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""

LATENCY = 200
"""Cycles of a product in addition to those in which the MXU is loaded and multiplies.

With `TURNED` and `SQUARES`, estimates are 0.9 to 1.6 times the cycles of kernels compiled for v5e
and v6e: products of 32 by 128 and 128 by 128 elements, 32 by 64 and 64 by 256, and distances of 32
rows to 128 of 128 and of 16 elements, and of 64 rows to 256 of 64 elements.
"""

TURNED = 150
"""Additional cycles where both factors are summed along lanes, so that one is transposed."""

SQUARES = 150
"""Cycles to sum the squares of both factors' rows and add them to the product."""

_REDUCTION = re.compile(r"vector\.multi_reduction <add>, .*\[(?P<axis>\d)\] : ")
_PASSED_ON = frozenset(("vector.shape_cast", "tpu.reshape", "vector.broadcast"))


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Sum over all pairs of rows.

    Attributes:
      parts: operations on all pairs.
      origins: operations that produce the two factors.
      sizes: rows of the left operand, size of the summed dimension, columns of the right operand.
      is_distance: whether differences are squared instead of factors multiplied.
      is_turned: whether the sum is along lanes.
    """

    reduction: ProgramOperation
    parts: tuple[ProgramOperation, ...]
    origins: tuple[ProgramOperation, ...]
    sizes: tuple[int, int, int]
    is_distance: bool
    is_turned: bool

    @property
    def is_exact(self) -> bool:
        """True if both factors are multiplied and were converted from bf16."""
        converted = [o for o in self.origins if o.name == "arith.extf" and "xbf16>" in o.text]
        return not self.is_distance and len(converted) == 2

    @property
    def cycles(self) -> int:
        """Estimated cycles of the product on the MXU."""
        rows, summed, columns = self.sizes
        tiles = math.ceil(summed / TILE) * math.ceil(columns / TILE)
        passes = 1 if self.is_exact else PASSES
        extra = TURNED * self.is_turned + SQUARES * self.is_distance
        return passes * tiles * (LOADING + math.ceil(rows / 8)) + LATENCY + extra


def advise_broadcast_product(subject: AdviceSubject) -> Iterator[Advice]:
    return (advice for advice, _ in _found(subject))


def places_of_pairs(subject: AdviceSubject) -> frozenset[Place]:
    """Return the lines with work on all pairs that this advice is about."""
    return frozenset(place for _, places in _found(subject) for place in places)


def _found(subject: AdviceSubject) -> list[tuple[Advice, frozenset[Place]]]:
    program, step = subject.program, subject.step
    if step is None or subject.is_memory_bound:
        return []
    found = []
    for reduction in program.named("vector.multi_reduction"):
        pairs = _pairs(program, reduction)
        if pairs is None or program.is_conditional(reduction.line):
            continue
        sources = {program.source(part) for part in (*pairs.parts, pairs.reduction)}
        lines = sources | {program.source(origin) for origin in pairs.origins}
        places = frozenset(line.place for line in lines if line is not None)
        placed: list[PlacedInstruction] = [p for s in sources for p in subject.at(s)]
        times, share = subject.times(reduction.line), subject.share(placed)
        if times is None or not share:
            continue
        now, then = share * step.compute, pairs.cycles * times
        if share * (1 - then / now) < MIN_GAIN:
            continue
        rows, summed, columns = pairs.sizes
        what = "squares the differences of" if pairs.is_distance else "multiplies"
        precision = (
            "of bf16, with preferred_element_type=jnp.float32, which is as exact"
            if pairs.is_exact
            else "with preferred_element_type=jnp.float32, and with precision=lax.Precision."
            "HIGHEST unless products of values rounded to bf16 are precise enough"
        )
        advice = KIND.advice(
            source=program.source(reduction),
            message=(
                f"the vector unit {what} all {rows} by {columns} pairs of rows, of {summed} "
                f"elements each, and sums them, which takes about {now:,.0f} of "
                f"{step.compute:,.0f} cycles of a step; the MXU would need about {then:,}"
            ),
            remedy=(
                "multiply on the MXU, "
                + (
                    "since |x - y|² = |x|² - 2 x·y + |y|²: lax.dot_general, "
                    if pairs.is_distance
                    else "without broadcasting to three dimensions: lax.dot_general, "
                )
                + precision
                + (
                    "; subtract the mean from both first, because differences of large squares "
                    "are less exact"
                    if pairs.is_distance
                    else ""
                )
            ),
            evidence=(
                derived("pairs of rows", rows * columns),
                derived("cycles of a step", round(step.compute), unit="cycles"),
                derived("cycles of these lines", round(now), unit="cycles"),
                derived("cycles on the MXU", then, unit="cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )
        found.append((advice, places))
    return found


def _pairs(program: MosaicProgram, reduction: ProgramOperation) -> _Pairs | None:
    """Return the sum over all pairs that a reduction computes; None for other reductions."""
    reduced = _REDUCTION.search(reduction.text)
    product = program.producer(reduction.operands[0], reduction.line)
    if reduced is None or product is None or product.name != "arith.mulf":
        return None
    parts = [product]
    is_distance = len(set(product.operands)) == 1
    if is_distance:
        difference = program.producer(product.operands[0], product.line)
        if difference is None or difference.name != "arith.subf":
            return None
        parts.append(difference)
    used = zip(parts, (reduction, *parts), strict=False)
    if any(set(program.users(part)) != {user} for part, user in used):
        return None  # the pairs are used elsewhere as well
    whole = product.shape
    if whole is None or len(whole[0]) != 3:
        return None
    shape, axis = whole[0], int(reduced["axis"])
    first, second = (n for n in range(3) if n != axis)
    shapes, pair = [], parts[-1]
    for value in pair.operands:
        spread = program.producer(value, pair.line)
        if spread is None or spread.name != "vector.broadcast":
            return None
        parts.append(spread)
        small = spread.operand_shape
        shapes.append(small[0] if small is not None else ())
    wanted = [
        tuple(n if at in (own, axis) else 1 for at, n in enumerate(shape))
        for own in (first, second)
    ]
    if sorted(shapes) != sorted(wanted) or 1 in (shape[first], shape[second]):
        return None
    origins = [program.origin(value, pair.line, _PASSED_ON) for value in pair.operands]
    return _Pairs(
        reduction=reduction,
        parts=tuple(parts),
        origins=tuple(origin for origin in origins if origin is not None),
        sizes=(shape[first], shape[axis], shape[second]),
        is_distance=is_distance,
        is_turned=axis == 2,
    )


KIND = AdviceKind(
    name="broadcast-product",
    title="Products of all pairs of rows on the vector unit",
    condition=(
        "Two arrays are repeated along each other's rows, multiplied or subtracted and squared, "
        f"and summed over their shared dimension; the MXU, in the {PASSES} passes of the highest "
        f"precision, or one for values from bf16, would save at least {MIN_GAIN:.0%} of the "
        "executed bundles."
    ),
    remedy="Multiply with `lax.dot_general`; expand the square of a difference.",
    rule=advise_broadcast_product,
)
